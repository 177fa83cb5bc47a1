"""The JSON Schema (2020-12) of a registry, generated from the types that it is read into.

`sources.schema.json` beside this file is its output; a test keeps the two equal, and another checks
that whatever the loader takes the schema takes as well. Some things a schema cannot say: that ranks
differ, that nothing stands there twice, that a day exists, that a signature is the curator's.
"""

import json
from importlib.resources import files
from typing import Any

import msgspec

from trunkline.documents.schema import without_null
from trunkline.sources.model import SourceRegistry

FILE = "sources.schema.json"


def registry_schema() -> dict[str, Any]:
    """Return the schema of a whole registry."""
    _, found = msgspec.json.schema_components([SourceRegistry], ref_template="#/$defs/{name}")
    definitions = {name: without_null(definition) for name, definition in found.items()}
    whole = definitions.pop(SourceRegistry.__name__)
    whole["title"] = "A registry of sources"
    dialect = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    # Through text and back: what msgspec gives has tuples in it, and JSON has none.
    return json.loads(json.dumps(dialect | whole | {"$defs": definitions}))


def schema_text() -> str:
    """Return the schema as it is shipped."""
    return json.dumps(registry_schema(), indent=2) + "\n"


def shipped_schema() -> dict[str, Any]:
    """Read the schema that was shipped with this package."""
    return json.loads(files("trunkline.sources").joinpath(FILE).read_text(encoding="utf-8"))
