"""The real tools and the labelled queries, as the benchmarks and the tests read them."""

import json
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from trunkline.jsonrpc import to_raw
from trunkline.mcp.features import Feature, FeatureKind
from trunkline.routing.catalog import Catalog, FeatureListing, merge_listings

HERE = Path(__file__).parent


class Query(NamedTuple):
    text: str
    right: frozenset[str]
    misspelt: bool

    @property
    def held_out(self) -> bool:
        """Return whether a query belongs to the held-out half; see docs/explain/finding.md."""
        return sha256(self.text.encode()).digest()[0] % 2 == 1


def servers() -> list[dict[str, Any]]:
    """Return the collected lists."""
    paths = sorted((HERE / "tools").glob("*.json"))
    return [json.loads(path.read_text(encoding="utf-8")) for path in paths]


def catalog() -> Catalog:
    """Return all real tools, merged as the gateway would."""
    listings: list[FeatureListing] = []
    for server in servers():
        features = [
            Feature(FeatureKind.TOOL, tool["name"], to_raw(tool)) for tool in server["tools"]
        ]
        listings.append(FeatureListing(server["server"], server["server"], tuple(features)))
    return merge_listings(listings)


def queries(file: str = "queries.txt") -> list[Query]:
    """Return all labelled queries of a file."""
    known = {entry.public_name for entry in catalog().entries(FeatureKind.TOOL)}
    found: list[Query] = []
    for line in (HERE / file).read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            text, _, right = line.partition(" = ")
            query = Query(text.removeprefix("~"), frozenset(right.split()), text.startswith("~"))
            unknown = query.right - known
            if unknown or not query.right:
                raise ValueError(f"{line!r}: there are no tools {sorted(unknown)}")
            found.append(query)
    return found
