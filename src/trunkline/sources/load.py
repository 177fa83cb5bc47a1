"""From a file to a registry: every mistake at once, each with its file, line, column and remedy.

    file ──> text ──> tables ──> against types ──> against each other ──> against the signature
     │        │         │            │                   │                     │
     └────────┴─────────┴────────────┴───────────────────┴─────────────────────┴──> ConfigErrors

Refuses comments and trailing commas in JSON: others read the file too, and not all forgive them.

Rules upheld here:
1. Any bytes give a registry or ConfigErrors, and nothing else.
2. A registry that was loaded keeps all rules: three sources with the ranks 1, 2 and 3, at least
   three patterns, no name, pattern or address twice where one would hide the other.
3. A signature is absent or the curator's. A bad one is worse than none.
"""

from collections.abc import Iterator
from datetime import datetime
from importlib.resources import files
from pathlib import Path
from typing import Any, cast

import msgspec
import msgspec.inspect
from msgspec import Struct

from trunkline.documents.errors import Complain, key_text
from trunkline.documents.fit import fit
from trunkline.documents.lines import KeyPath
from trunkline.documents.parse import Table, as_table, parse_json, parse_toml
from trunkline.documents.reading import read_text
from trunkline.sources.keys import REGISTRY, digest, is_signed_by, key_bytes
from trunkline.sources.model import Category, Endorsement, SourceRegistry

MAX_FILE = 8 * 1024 * 1024
"""How long a registry may be, in bytes."""

EMBEDDED = "default.json"

_WHOLE = msgspec.inspect.type_info(SourceRegistry)


class Loaded(Struct, frozen=True):
    """A registry, and what is to be known about where it comes from."""

    registry: SourceRegistry
    tree: Table
    """What the file says, signature and all."""
    file: str

    @property
    def is_signed(self) -> bool:
        """Whether it carries a signature; if it does, it is the curator's."""
        return self.registry.signature is not None

    @property
    def digest(self) -> str:
        """The hash of what is signed."""
        return digest(self.tree)


def load(path: Path, missing: str = "check the name") -> Loaded:
    """Return the registry in a file, JSON or TOML; `missing` is the remedy if none is there.

    Raises ConfigErrors.
    """
    return parse(read_text(path, MAX_FILE, missing), str(path))


def embedded() -> Loaded:
    """Return the registry that comes with the package."""
    text = files("trunkline.sources").joinpath(EMBEDDED).read_text(encoding="utf-8")
    return parse(text, EMBEDDED)


def is_toml(file: str) -> bool:
    """Tell which notation a file is in, by its name."""
    return file.lower().endswith(".toml")


def parse(text: str, file: str, *, verify: bool = True) -> Loaded:
    """Return the registry in a text; raises ConfigErrors.

    Whoever is about to sign it anew need not `verify` the signature that it has.
    """
    parsed = parse_toml(text, file) if is_toml(file) else parse_json(text, file, plain=True)
    report = parsed.report
    report.columns = True
    tree = as_table(parsed.tree) or {}
    if parsed.done:
        fit(parsed.tree, _WHOLE, (), report.error)
        _check_dates(tree, report.error)
        _check_key(tree, report.error)
        _check_endorsements(tree, report.error)
        _check_categories(tree, report.error)
    report.check()
    registry = msgspec.convert(tree, SourceRegistry)
    is_bad = registry.signature and not is_signed_by(registry.curator.pubkey, REGISTRY, tree)
    if verify and is_bad:
        why = "not the curator's signature of what the file says"
        report.error(("signature",), why, "sign it again: trunkline sources sign")
        report.check()
    return Loaded(registry, tree, file)


# What types cannot say. What breaks the types is passed over: it has been complained of.


def _check_dates(tree: Table, complain: Complain) -> None:
    dates: list[tuple[KeyPath, object]] = [(("updated",), tree.get("updated"))]
    for path, endorsement in _each(tree, "endorsements", Endorsement):
        dates.append(((*path, "since"), endorsement.since))
    for path, date in dates:
        if isinstance(date, str) and date[:4].isdigit() and not _is_date(date):
            complain(path, "there is no such day", 'write a date, such as "2026-11-16"')


def _is_date(text: str) -> bool:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


def _check_key(tree: Table, complain: Complain) -> None:
    curator = as_table(tree.get("curator")) or {}
    keys: list[tuple[KeyPath, object]] = [(("curator", "pubkey"), curator.get("pubkey"))]
    for path, endorsement in _each(tree, "endorsements", Endorsement):
        keys.append(((*path, "pubkey"), endorsement.pubkey))
    for path, key in keys:
        if isinstance(key, str) and len(key) in {52, 55}:
            try:
                key_bytes(key)
            except ValueError:
                complain(path, "no key is written so", "copy it again, whole")


def _check_endorsements(tree: Table, complain: Complain) -> None:
    seen: dict[tuple[str, str], KeyPath] = {}
    for path, endorsement in _each(tree, "endorsements", Endorsement):
        for key in ("pubkey", "url"):
            _once(seen, (key, getattr(endorsement, key)), (*path, key), complain)


def _check_categories(tree: Table, complain: Complain) -> None:
    seen: dict[tuple[str, str], KeyPath] = {}
    for path, category in _each(tree, "categories", Category):
        _once(seen, ("name", _folded(category.name)), (*path, "name"), complain)
        for index, pattern in enumerate(category.query_patterns):
            place = (*path, "query_patterns", index)
            _once(seen, ("pattern", _folded(pattern)), place, complain)
        ranks: dict[int, int] = {}
        for index, source in enumerate(category.sources):
            place = (*path, "sources", index)
            if (other := ranks.setdefault(source.rank, index)) != index:
                why = f"rank {source.rank} is that of sources[{other}] already"
                complain((*place, "rank"), why, "give the three the ranks 1, 2 and 3")
            _once(seen, (str(path), source.url), (*place, "url"), complain)


def _once(
    seen: dict[tuple[str, str], KeyPath], what: tuple[str, str], path: KeyPath, complain: Complain
) -> None:
    first = seen.setdefault(what, path)
    if first != path:
        complain(path, f"the same as {key_text(first)}", "keep one of the two")


def _folded(text: str) -> str:
    return " ".join(text.casefold().split())


def _each(tree: Table, key: str, kind: type[Any]) -> Iterator[tuple[KeyPath, Any]]:
    """Yield what is well-formed of a list or a table, with its path."""
    value = tree.get(key)
    if isinstance(value, list):
        value = dict(enumerate(cast("list[Any]", value)))
    for name, item in (as_table(value) or {}).items():
        try:
            yield (key, name), msgspec.convert(item, kind)
        except (msgspec.ValidationError, RecursionError):
            continue
