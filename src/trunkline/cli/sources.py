"""`trunkline sources`: what a curator does with a registry.

Rules upheld here:
1. No private key is ever printed.
2. What is not good is said in full, with places and remedies, and nothing is written.
"""

from pathlib import Path
from typing import Any, Literal, NamedTuple

from trunkline.cli.screen import FAILED, WRONG, fail, print_json, print_lines, print_table, say
from trunkline.documents.errors import ConfigErrors
from trunkline.sources.changes import BadLog, verify_log
from trunkline.sources.edit import (
    NotYours,
    Taken,
    add_category,
    log_path,
    new_registry,
    read_log,
    sign_file,
)
from trunkline.sources.keys import KeyUnusable, Signer, is_same_key
from trunkline.sources.load import Loaded, embedded, load
from trunkline.sources.matching import EmptyQuery, Matching, OnlyStopWords, TopicFinder

_SHOWN = 10
"""How many topics are shown beside the one that is meant."""


class NewTopic(NamedTuple):
    """A topic as the arguments have it."""

    slug: str
    name: str
    description: str
    patterns: list[str]
    sources: list[str]


def keygen(path: Path) -> None:
    """Make a key."""
    try:
        signer = Signer.generate(path)
    except FileExistsError:
        fail(FAILED, f"{path} is there already, and a key that is lost is lost; name another file")
    except OSError as why:
        fail(FAILED, f"cannot write {path}: {(why.strerror or str(why)).lower()}")
    say(f"wrote the private key to {path}, for you alone; this is the public key:")
    print_lines(signer.pubkey)


def validate(path: Path, as_json: bool) -> None:
    """Say whether a registry is good."""
    try:
        loaded = load(path)
    except ConfigErrors as wrong:
        if as_json:
            print_json({"ok": False, "errors": wrong.errors})
            raise SystemExit(WRONG) from None
        fail(WRONG, *map(str, wrong.errors))
    if as_json:
        print_json({"ok": True, "errors": [], **_about(loaded)})
    else:
        signed = "signed" if loaded.is_signed else "not signed"
        print_lines(f"{path}: good, {len(loaded.registry.categories)} topics, {signed}")


def sign(path: Path, key: Path) -> None:
    """Sign a registry."""
    loaded, added = _signed(path, _signer(key))
    print_lines(f"{path}: signed, version {loaded.registry.version}, sha256:{loaded.digest}")
    say(f"{log_path(path)}: {added} entries added")


def verify(path: Path, by: str | None, as_json: bool) -> None:
    """Verify a signature and a log."""
    loaded = _load(path)
    pubkey = loaded.registry.curator.pubkey
    if not loaded.is_signed:
        fail(FAILED, f"{path}: not signed; its curator can run `trunkline sources sign`")
    if by is not None and not is_same_key(by, pubkey):
        fail(FAILED, f"{path}: expected to be signed by {by}, got {pubkey}")
    try:
        entries = read_log(path)
        head = None if entries is None else verify_log(entries, loaded.tree)
    except BadLog as why:
        place = ":".join(str(each) for each in (log_path(path), why.line) if each)
        fail(FAILED, f"{place}: {why.why}; the log, or the registry, is not what was signed")
    except ConfigErrors as wrong:
        fail(FAILED, *map(str, wrong.errors))
    if as_json:
        log = None if entries is None else {"entries": len(entries), "head": head}
        print_json({"ok": True, **_about(loaded), "log": log})
        return
    print_lines(
        f"{path}: signed by {loaded.registry.curator.name}, {pubkey}, sha256:{loaded.digest}"
    )
    if entries is None:
        print_lines("there is no change log")
    else:
        print_lines(f"{log_path(path)}: {len(entries)} entries hold, the last is {head}")


def match(
    query: str,
    path: Path | None,
    scoring: Literal["classic", "best"],
    threshold: float | None,
    as_json: bool,
) -> None:
    """Show what a question means."""
    loaded = embedded() if path is None else _load(path)
    matching = Matching(scoring=scoring, threshold=threshold)
    try:
        ranked = TopicFinder(loaded.registry.categories, matching).rank(query)
    except (EmptyQuery, OnlyStopWords) as why:
        fail(FAILED, str(why))
    least = matching.least
    is_match = bool(ranked) and ranked[0].score >= least
    if as_json:
        scores = [each._asdict() for each in ranked]
        meant = ranked[0].slug if is_match else None
        print_json({"match": meant, "threshold": least, "scores": scores})
    else:
        rows = [(f"{each.score:.4f}", each.slug) for each in ranked[:_SHOWN]]
        print_table(("score", "category"), rows, ("score",))
    if not is_match:
        say(f"trunkline: no match: no category scores {least:g}")
        raise SystemExit(FAILED)


def add(path: Path, topic: NewTopic, curator: str | None, key: Path | None) -> None:
    """Add a topic, to a new registry if there is none yet."""
    signer = None if key is None else _signer(key)
    category = _category(topic)
    is_new = not path.exists()
    if is_new and (curator is None or signer is None):
        fail(WRONG, f"there is no {path}; to begin it, say --curator NAME and --key FILE")
    try:
        if is_new and curator is not None and signer is not None:
            new_registry(path, curator, signer.pubkey)
        loaded = add_category(path, topic.slug, category)
    except ConfigErrors as wrong:
        if is_new:
            path.unlink(missing_ok=True)
        fail(WRONG, *map(str, wrong.errors), "nothing was added")
    except Taken as why:
        fail(FAILED, str(why))
    except OSError as why:
        fail(FAILED, f"cannot write {path}: {(why.strerror or str(why)).lower()}")
    if signer is not None:
        loaded, _ = _signed(path, signer)
    signed = "signed" if loaded.is_signed else "not signed: `trunkline sources sign` does it"
    print_lines(f"{path}: added {topic.slug}, version {loaded.registry.version}, {signed}")


def _category(topic: NewTopic) -> dict[str, Any]:
    sources: list[dict[str, Any]] = []
    for rank, text in enumerate(topic.sources, 1):
        parts = [part.strip() for part in text.split("|", 3)]
        if len(parts) != 4:
            fail(WRONG, f"expected --source 'TYPE|NAME|URL|WHY', got {text!r}")
        kind, name, url, why = parts
        sources.append({"rank": rank, "name": name, "url": url, "type": kind, "why": why})
    return {
        "name": topic.name,
        "description": topic.description,
        "query_patterns": topic.patterns,
        "sources": sources,
    }


def _load(path: Path) -> Loaded:
    try:
        return load(path)
    except ConfigErrors as wrong:
        fail(WRONG, *map(str, wrong.errors))


def _signer(key: Path) -> Signer:
    try:
        return Signer.load(key)
    except KeyUnusable as why:
        fail(WRONG, str(why))


def _signed(path: Path, signer: Signer) -> tuple[Loaded, int]:
    try:
        return sign_file(path, signer)
    except ConfigErrors as wrong:
        fail(WRONG, *map(str, wrong.errors))
    except NotYours as why:
        fail(FAILED, f"{path}: {why}")
    except BadLog as why:
        fail(FAILED, f"{log_path(path)}: {why}; keep it elsewhere to begin a new one")
    except OSError as why:
        fail(FAILED, f"cannot write {path}: {(why.strerror or str(why)).lower()}")


def _about(loaded: Loaded) -> dict[str, Any]:
    registry = loaded.registry
    return {
        "version": registry.version,
        "updated": registry.updated,
        "curator": registry.curator,
        "categories": len(registry.categories),
        "signed": loaded.is_signed,
        "digest": loaded.digest,
    }
