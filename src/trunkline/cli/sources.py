"""`trunkline sources`: creates, checks and signs registries of sources.

Invariants:
1. A private key is never printed.
2. An invalid registry is reported with all errors, locations and remedies, and nothing is written.
"""

from pathlib import Path
from typing import Any, Literal, NamedTuple, NoReturn

from trunkline.cli.output import (
    EXIT_FAILURE,
    EXIT_USAGE,
    count_text,
    fail,
    fail_config,
    print_json,
    print_lines,
    print_message,
    print_table,
)
from trunkline.documents.errors import ConfigErrors
from trunkline.sources.registry_file import (
    LoadedRegistry,
    SlugTaken,
    WrongSigningKey,
    add_category,
    create_registry,
    load_embedded,
    load_registry,
    log_path,
    read_log,
    sign_registry,
)
from trunkline.sources.signing import (
    InvalidChangeLog,
    RegistrySigner,
    UnusableKey,
    is_same_key,
    verify_log,
)
from trunkline.sources.topics import EmptyQuery, MatchSettings, OnlyStopWords, TopicFinder

_MAX_SHOWN_TOPICS = 10


class NewTopic(NamedTuple):
    """A topic as given on the command line."""

    slug: str
    name: str
    description: str
    patterns: list[str]
    sources: list[str]


def run_keygen(path: Path) -> None:
    """Create a key pair."""
    try:
        signer = RegistrySigner.generate(path)
    except FileExistsError:
        fail(
            EXIT_FAILURE,
            f"{path} already exists, and an overwritten key is lost; name another file",
        )
    except OSError as error:
        _fail_write(path, error)
    print_message(f"wrote the private key to {path}, readable by you only; the public key is:")
    print_lines(signer.pubkey)


def run_validate(path: Path, as_json: bool) -> None:
    """Check a registry."""
    try:
        loaded = load_registry(path, verify=False)
    except ConfigErrors as error:
        if as_json:
            print_json({"ok": False, "errors": error.errors})
            raise SystemExit(EXIT_USAGE) from None
        fail_config(error)
    _warn_invalid_signature(loaded)
    if as_json:
        print_json({"ok": True, "errors": [], **_summary(loaded)})
    else:
        signed = "signed" if loaded.is_signed else "not signed"
        topics = count_text(len(loaded.registry.categories), "topic")
        print_lines(f"{path}: valid, {topics}, {signed}")


def run_sign(path: Path, key: Path) -> None:
    """Sign a registry."""
    loaded, added = _sign_registry(path, _load_signer(key))
    print_lines(f"{path}: signed, version {loaded.registry.version}, sha256:{loaded.digest}")
    print_message(f"{log_path(path)}: {added} entries added")


def run_verify(path: Path, by: str | None, as_json: bool) -> None:
    """Verify the signature and change log of a registry."""
    loaded = _load_registry(path)
    pubkey = loaded.registry.curator.pubkey
    if not loaded.is_signed:
        fail(EXIT_FAILURE, f"{path}: not signed; its curator can run `trunkline sources sign`")
    # One key has two spellings, hex and z-base-32.
    if by is not None and not is_same_key(by, pubkey):
        fail(EXIT_FAILURE, f"{path}: expected to be signed by {by}, got {pubkey}")
    try:
        entries = read_log(path)
        head = None if entries is None else verify_log(entries, loaded.tree)
    except InvalidChangeLog as error:
        place = ":".join(str(each) for each in (log_path(path), error.line) if each)
        fail(
            EXIT_FAILURE,
            f"{place}: {error.reason}; the log or the registry was changed after signing",
        )
    except ConfigErrors as error:
        fail_config(error, EXIT_FAILURE)
    if as_json:
        log = None if entries is None else {"entries": len(entries), "head": head}
        print_json({"ok": True, **_summary(loaded), "log": log})
        return
    print_lines(
        f"{path}: signed by {loaded.registry.curator.name}, {pubkey}, sha256:{loaded.digest}"
    )
    if entries is None:
        print_lines("there is no change log")
    else:
        print_lines(f"{log_path(path)}: {len(entries)} valid entries, the last has the hash {head}")


def run_match(
    query: str,
    path: Path | None,
    scoring: Literal["classic", "best"],
    threshold: float | None,
    as_json: bool,
) -> None:
    """Print which topic matches a question."""
    loaded = load_embedded() if path is None else _load_registry(path, verify=False)
    _warn_invalid_signature(loaded)
    matching = MatchSettings(scoring=scoring, threshold=threshold)
    try:
        ranked = TopicFinder(loaded.registry.categories, matching).rank(query)
    except (EmptyQuery, OnlyStopWords) as error:
        fail(EXIT_FAILURE, str(error))
    threshold = matching.min_score
    is_match = bool(ranked) and ranked[0].score >= threshold
    if as_json:
        scores = [each._asdict() for each in ranked]
        matched = ranked[0].slug if is_match else None
        print_json({"match": matched, "threshold": threshold, "scores": scores})
    else:
        rows = [(f"{each.score:.4f}", each.slug) for each in ranked[:_MAX_SHOWN_TOPICS]]
        print_table(("score", "category"), rows, ("score",))
    if not is_match:
        print_message(f"trunkline: no match: no category scores {threshold:g} or more")
        raise SystemExit(EXIT_FAILURE)


def run_add(path: Path, topic: NewTopic, curator: str | None, key: Path | None) -> None:
    """Add a topic; create the registry if it does not exist."""
    # Read the key first: a wrong key file must not leave a new registry behind.
    signer = None if key is None else _load_signer(key)
    category = _category_table(topic)
    is_new = not path.exists()
    if is_new and (curator is None or signer is None):
        fail(EXIT_USAGE, f"there is no {path}; to create it, add --curator NAME and --key FILE")
    try:
        if is_new and curator is not None and signer is not None:
            create_registry(path, curator, signer.pubkey)
        loaded = add_category(path, topic.slug, category)
    except ConfigErrors as error:
        if is_new:
            # It was created for this topic: leave no empty registry behind.
            path.unlink(missing_ok=True)
        fail(EXIT_USAGE, *map(str, error.errors), "nothing was added")
    except SlugTaken as error:
        fail(EXIT_FAILURE, str(error))
    except OSError as error:
        _fail_write(path, error)
    if signer is not None:
        loaded, _ = _sign_registry(path, signer)
    signed = "signed" if loaded.is_signed else "not signed; run `trunkline sources sign`"
    print_lines(f"{path}: added {topic.slug}, version {loaded.registry.version}, {signed}")


def _category_table(topic: NewTopic) -> dict[str, Any]:
    sources: list[dict[str, Any]] = []
    for rank, text in enumerate(topic.sources, 1):
        # The reason comes last, so it may contain bars itself.
        parts = [part.strip() for part in text.split("|", 3)]
        if len(parts) != 4:
            fail(EXIT_USAGE, f"expected --source 'TYPE|NAME|URL|WHY', got {text!r}")
        kind, name, url, why = parts
        sources.append({"rank": rank, "name": name, "url": url, "type": kind, "why": why})
    return {
        "name": topic.name,
        "description": topic.description,
        "query_patterns": topic.patterns,
        "sources": sources,
    }


def _load_registry(path: Path, *, verify: bool = True) -> LoadedRegistry:
    try:
        return load_registry(path, verify=verify)
    except ConfigErrors as error:
        fail_config(error)


def _warn_invalid_signature(loaded: LoadedRegistry) -> None:
    """Warn a curator who has edited a signed registry; servers and `verify` refuse it."""
    if loaded.has_invalid_signature:
        reason = "not the curator's signature of what the file says"
        print_message(
            f"warning: {loaded.file}: {reason}; sign it again: trunkline sources sign {loaded.file}"
        )


def _load_signer(key: Path) -> RegistrySigner:
    try:
        return RegistrySigner.load(key)
    except UnusableKey as error:
        fail(EXIT_USAGE, str(error))


def _sign_registry(path: Path, signer: RegistrySigner) -> tuple[LoadedRegistry, int]:
    try:
        return sign_registry(path, signer)
    except ConfigErrors as error:
        fail_config(error)
    except WrongSigningKey as error:
        fail(EXIT_FAILURE, f"{path}: {error}")
    except InvalidChangeLog as error:
        fail(EXIT_FAILURE, f"{log_path(path)}: {error}; move it away to start a new log")
    except OSError as error:
        _fail_write(path, error)


def _fail_write(path: Path, error: OSError) -> NoReturn:
    fail(EXIT_FAILURE, f"cannot write {path}: {(error.strerror or str(error)).lower()}")


def _summary(loaded: LoadedRegistry) -> dict[str, Any]:
    registry = loaded.registry
    return {
        "version": registry.version,
        "updated": registry.updated,
        "curator": registry.curator,
        "categories": len(registry.categories),
        "signed": loaded.is_signed,
        "digest": loaded.digest,
    }
