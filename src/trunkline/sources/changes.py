"""Changes: the log of what a registry came from, hash-chained and signed, one JSON object a line.

    category_added ─previous_hash─> source_added ─> … ─> registry_signed {version, digest}

An entry has an id, timestamp, action, category, data, actor, previous_hash and signature, as in the
founding brief; but here the signature covers all the others, the chain and the id as well.

Refuses to keep itself: files are read and appended to by `edit`, and this works on their lines.

Rules upheld here:
1. A log is good if every entry is signed by the curator and names the hash of the one before it.
2. A good log, played from its beginning, gives the topics of the registry, and its last entry names
   the digest of the whole: neither can lose its end, or change, without the other telling.
3. Nothing is written down twice: what has not changed gives no entry.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256
from typing import Any, NamedTuple, TypeAlias, cast

from trunkline.sources.keys import CHANGE, Signer, canonical, digest, is_same_key, is_signed_by

Table: TypeAlias = dict[str, Any]

BEGINNING = "0" * 64
"""What the first entry names as the hash before it."""

SIGNED = "registry_signed"

_KEYS = {"id", "timestamp", "action", "data", "actor", "previous_hash", "signature"}
_ABOUT = ("name", "description", "query_patterns")


class BadLog(ValueError):
    """A log that does not hold: the line, if it is one line's fault, and why."""

    def __init__(self, line: int | None, why: str) -> None:
        super().__init__(f"line {line}: {why}" if line else why)
        self.line = line
        self.why = why


class Change(NamedTuple):
    """Something that became different, before anybody has signed it."""

    action: str
    category: str
    """The slug of the topic, or "" if it is about the whole."""
    data: Table


class Stamp(NamedTuple):
    """What the world outside gives to an entry: the time, and a new id each time."""

    timestamp: str
    new_id: Callable[[], str]


def entry_hash(entry: Table) -> str:
    """Return what the next entry names: the hash of all of this one, its signature as well."""
    return sha256(canonical({"entry": entry})).hexdigest()


def parse_log(text: str) -> list[Table]:
    """Return the entries of a log, not yet verified; raises BadLog."""
    entries: list[Table] = []
    for number, line in enumerate(text.splitlines(), 1):
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            raise BadLog(number, "not JSON") from None
        if not _is_entry(entry):
            raise BadLog(number, "not an entry of a change log")
        entries.append(entry)
    return entries


def _is_entry(value: object) -> bool:
    if not isinstance(value, dict):
        return False
    entry = cast("Table", value)
    texts = _KEYS - {"data"}
    return (
        set(entry) - {"category"} == _KEYS
        and all(isinstance(entry[key], str) for key in texts)
        and isinstance(entry.get("category", ""), str)
        and isinstance(entry["data"], dict)
    )


def render_log(entries: Iterable[Table]) -> str:
    """Return entries as the lines of a log."""
    return "".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in entries)


def verify_log(entries: list[Table], tree: Table) -> str:
    """Return the hash of the last entry of a log that holds for a registry; raises BadLog."""
    curator = tree["curator"]["pubkey"]
    state = _replay(entries, curator)
    if not entries or entries[-1]["action"] != SIGNED:
        raise BadLog(None, "the last entry is missing: expected one that says what was signed")
    if entries[-1]["data"].get("digest") != digest(tree):
        raise BadLog(len(entries), "the registry is not the one that was signed last")
    if state != _state_of(tree):
        raise BadLog(None, "the entries do not lead to the topics of the registry")
    return entry_hash(entries[-1])


def extend_log(entries: list[Table], tree: Table, signer: Signer, stamp: Stamp) -> list[Table]:
    """Return the entries to append when a registry is signed as it is now; raises BadLog."""
    state = _replay(entries, signer.pubkey)
    changes = [*_differences(state, _state_of(tree))]
    signed = Change(SIGNED, "", {"version": tree["version"], "digest": digest(tree)})
    if changes or not entries or entries[-1]["data"] != signed.data:
        changes.append(signed)
    previous = entry_hash(entries[-1]) if entries else BEGINNING
    added: list[Table] = []
    for change in changes:
        entry: Table = {"id": stamp.new_id(), "timestamp": stamp.timestamp, "action": change.action}
        if change.category:
            entry["category"] = change.category
        entry |= {"data": change.data, "actor": signer.pubkey, "previous_hash": previous}
        added.append(signer.sign(CHANGE, entry))
        previous = entry_hash(added[-1])
    return added


def _replay(entries: list[Table], pubkey: str) -> Table:
    """Return the topics that a log leads to, verifying it on the way; raises BadLog."""
    state: Table = {}
    previous = BEGINNING
    for number, entry in enumerate(entries, 1):
        if entry["previous_hash"] != previous:
            raise BadLog(number, "the entry before it is missing, or was changed")
        if not is_same_key(entry["actor"], pubkey):
            raise BadLog(number, "by another key than the curator's")
        if not is_signed_by(pubkey, CHANGE, entry):
            raise BadLog(number, "not signed by its actor, or changed since")
        try:
            _apply(state, Change(entry["action"], entry.get("category", ""), entry["data"]))
        except (KeyError, TypeError):
            raise BadLog(number, "about something that is not there, or is already") from None
        previous = entry_hash(entry)
    return state


def _state_of(tree: Table) -> Table:
    """Return the topics of a registry in the form that a log leads to."""
    return {
        slug: {key: category[key] for key in _ABOUT}
        | {"sources": {source["url"]: source for source in category["sources"]}}
        for slug, category in tree["categories"].items()
    }


def _differences(old: Table, new: Table) -> Iterator[Change]:
    for slug in sorted(old.keys() - new.keys()):
        yield Change("category_removed", slug, {})
    for slug, category in sorted(new.items()):
        before = old.get(slug)
        about = {key: category[key] for key in _ABOUT}
        if before is None:
            yield Change("category_added", slug, about)
        elif about != {key: before[key] for key in _ABOUT}:
            yield Change("category_updated", slug, about)
        yield from _source_differences(slug, before["sources"] if before else {}, category)


def _source_differences(slug: str, old: Table, category: Table) -> Iterator[Change]:
    new = category["sources"]
    for url in sorted(old.keys() - new.keys()):
        yield Change("source_removed", slug, {"url": url})
    for url, source in new.items():
        if url not in old:
            yield Change("source_added", slug, source)
        elif source != old[url]:
            yield Change("source_updated", slug, source)


def _apply(state: Table, change: Change) -> None:
    """Do to `state` what an entry says; raises KeyError where that makes no sense."""
    action, slug, data = change
    match action:
        case "category_added" if slug not in state:
            state[slug] = {key: data[key] for key in _ABOUT} | {"sources": {}}
        case "category_updated":
            state[slug] |= {key: data[key] for key in _ABOUT}
        case "category_removed":
            del state[slug]
        case "source_added" if data["url"] not in state[slug]["sources"]:
            state[slug]["sources"][data["url"]] = data
        case "source_updated" if data["url"] in state[slug]["sources"]:
            state[slug]["sources"][data["url"]] = data
        case "source_removed":
            del state[slug]["sources"][data["url"]]
        case _ if action == SIGNED:
            return
        case _:
            raise KeyError(action)
