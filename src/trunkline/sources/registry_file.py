"""Read and write registry files: every mistake at once, with line, column and fix.

    file ──> text ──> tables ──> against types ──> against each other ──> against the signature
     │        │         │            │                   │                     │
     └────────┴─────────┴────────────┴───────────────────┴─────────────────────┴──> ConfigErrors

Comments and trailing commas in JSON are errors, because other programs read the file too. JSON is
written as a whole, indented. In TOML only the changed lines are written, and comments stay.

Invariants upheld here:
1. Any bytes give a registry or ConfigErrors, and nothing else.
2. A loaded registry keeps all rules. Each topic has three sources with the ranks 1, 2 and 3, and
   at least three patterns. No name or pattern is a duplicate, and no address is twice in a topic.
3. A file with an invalid signature is refused, or its signature does not count, if its curator
   looks at an edited file.
4. A file is replaced atomically and keeps its permissions. If the path is a link, its target is
   replaced, and the log is in the folder of the target.
5. Only a valid registry is written: the new text is parsed before it replaces the file.
"""

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.resources import files
from io import SEEK_END
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import msgspec
import msgspec.inspect
from msgspec import Struct

from trunkline.documents.errors import AddError, KeyLocator, KeyPath, format_key_path
from trunkline.documents.parser import (
    Table,
    as_table,
    parse_json,
    parse_toml,
    read_text,
    scan_toml,
)
from trunkline.documents.validation import validate
from trunkline.files import replace_file
from trunkline.sources.model import Category, Endorsement, SourceRegistry
from trunkline.sources.signing import (
    REGISTRY_KIND,
    EntryStamp,
    RegistrySigner,
    content_digest,
    decode_public_key,
    extend_log,
    is_same_key,
    is_signed_by,
    parse_log,
    render_log,
)

MAX_REGISTRY_BYTES = 8 * 1024 * 1024
MAX_LOG_BYTES = 64 * 1024 * 1024

EMBEDDED_FILE = "default.json"

_REGISTRY_TYPE = msgspec.inspect.type_info(SourceRegistry)
_VERSION = re.compile(r"([0-9]+)\.([0-9]+)\.([0-9]+)")


class WrongSigningKey(ValueError):
    """The registry belongs to another key."""


class SlugTaken(ValueError):
    """A category has this slug already."""


class LoadedRegistry(Struct, frozen=True):
    """A registry and its file."""

    registry: SourceRegistry
    # The content of the file, signature included.
    tree: Table
    file: str
    has_invalid_signature: bool = False
    """Whether the signature is of another content or by another key than the curator's."""

    @property
    def is_signed(self) -> bool:
        """Whether there is a valid signature of the curator."""
        return self.registry.signature is not None and not self.has_invalid_signature

    @property
    def digest(self) -> str:
        """The hash of the signed content."""
        return content_digest(self.tree)


# Reading


def load_registry(
    path: Path, missing_fix: str = "check the name", *, verify: bool = True
) -> LoadedRegistry:
    """Return the registry in a JSON or TOML file; raises ConfigErrors.

    `missing_fix` is the fix in the error about a missing file. `verify` is as in `parse_registry`.
    """
    text = read_text(path, MAX_REGISTRY_BYTES, missing_fix)
    return parse_registry(text, str(path), verify=verify)


def load_embedded() -> LoadedRegistry:
    """Return the registry that is shipped with the package."""
    text = files("trunkline.sources").joinpath(EMBEDDED_FILE).read_text(encoding="utf-8")
    return parse_registry(text, EMBEDDED_FILE)


def is_toml(file: str) -> bool:
    """Return whether a file is TOML, by its name; all others are JSON."""
    return file.lower().endswith(".toml")


def parse_registry(text: str, file: str, *, verify: bool = True) -> LoadedRegistry:
    """Return the registry in a text; raises ConfigErrors.

    Without `verify`, an invalid signature is accepted, because the file is edited or signed next.
    """
    parsed = parse_toml(text, file) if is_toml(file) else parse_json(text, file, strict=True)
    errors = parsed.errors
    errors.with_columns = True
    tree = as_table(parsed.tree) or {}
    if parsed.is_complete:
        validate(parsed.tree, _REGISTRY_TYPE, (), errors.add_error)
        _check_dates(tree, errors.add_error)
        _check_public_keys(tree, errors.add_error)
        _check_endorsements(tree, errors.add_error)
        _check_categories(tree, errors.add_error)
    errors.raise_if_any()
    registry = msgspec.convert(tree, SourceRegistry)
    is_invalid = registry.signature is not None and not is_signed_by(
        registry.curator.pubkey, REGISTRY_KIND, tree
    )
    if verify and is_invalid:
        reason = "not the curator's signature of what the file says"
        errors.add_error(("signature",), reason, "sign it again: trunkline sources sign")
        errors.raise_if_any()
    return LoadedRegistry(registry, tree, file, is_invalid)


# The rules that types cannot express. Parts that do not fit their types have errors already, and
# are skipped.


def _check_dates(tree: Table, add_error: AddError) -> None:
    dates: list[tuple[KeyPath, object]] = [(("updated",), tree.get("updated"))]
    for path, endorsement in _valid_items(tree, "endorsements", Endorsement):
        dates.append(((*path, "since"), endorsement.since))
    for path, date in dates:
        # A text of another form has an error from its type already.
        if isinstance(date, str) and date[:4].isdigit() and not _is_date(date):
            add_error(path, "there is no such day", 'write a date, such as "2026-11-16"')


def _is_date(text: str) -> bool:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


def _check_public_keys(tree: Table, add_error: AddError) -> None:
    curator = as_table(tree.get("curator")) or {}
    keys: list[tuple[KeyPath, object]] = [(("curator", "pubkey"), curator.get("pubkey"))]
    for path, endorsement in _valid_items(tree, "endorsements", Endorsement):
        keys.append(((*path, "pubkey"), endorsement.pubkey))
    for path, key in keys:
        # Only z-base-32, with or without `pk:`, can fit the pattern and still not be a key.
        if isinstance(key, str) and len(key) in {52, 55}:
            try:
                decode_public_key(key)
            except ValueError:
                add_error(path, "not a public key", "copy the whole key again")


def _check_endorsements(tree: Table, add_error: AddError) -> None:
    first_paths: dict[tuple[str, str], KeyPath] = {}
    for path, endorsement in _valid_items(tree, "endorsements", Endorsement):
        for key in ("pubkey", "url"):
            _check_unique(first_paths, (key, getattr(endorsement, key)), (*path, key), add_error)


def _check_categories(tree: Table, add_error: AddError) -> None:
    first_paths: dict[tuple[str, str], KeyPath] = {}
    for path, category in _valid_items(tree, "categories", Category):
        _check_unique(
            first_paths, ("name", _casefold_words(category.name)), (*path, "name"), add_error
        )
        for index, pattern in enumerate(category.query_patterns):
            item_path = (*path, "query_patterns", index)
            _check_unique(first_paths, ("pattern", _casefold_words(pattern)), item_path, add_error)
        ranks: dict[int, int] = {}
        for index, source in enumerate(category.sources):
            item_path = (*path, "sources", index)
            if (other := ranks.setdefault(source.rank, index)) != index:
                reason = f"sources[{other}] has rank {source.rank} already"
                fix = "give the three the ranks 1, 2 and 3"
                add_error((*item_path, "rank"), reason, fix)
            _check_unique(first_paths, (str(path), source.url), (*item_path, "url"), add_error)


def _check_unique(
    first_paths: dict[tuple[str, str], KeyPath],
    identity: tuple[str, str],
    path: KeyPath,
    add_error: AddError,
) -> None:
    first = first_paths.setdefault(identity, path)
    if first != path:
        add_error(path, f"the same as {format_key_path(first)}", "keep one of the two")


def _casefold_words(text: str) -> str:
    return " ".join(text.casefold().split())


def _valid_items(tree: Table, key: str, kind: type[Any]) -> Iterator[tuple[KeyPath, Any]]:
    """Yield the items of a list or a table that fit their type, with their paths."""
    value = tree.get(key)
    if isinstance(value, list):
        value = dict(enumerate(cast("list[Any]", value)))
    for name, item in (as_table(value) or {}).items():
        try:
            yield (key, name), msgspec.convert(item, kind)
        except (msgspec.ValidationError, RecursionError):
            continue


# Writing


def log_path(path: Path) -> Path:
    """Return the path of a registry's change log: next to the file, not next to a link to it."""
    path = _resolve_link(path)
    return path.with_name(f"{path.name}.log")


def read_log(path: Path) -> list[Table] | None:
    """Return the log entries of a registry, None without a log.

    Raises InvalidChangeLog or ConfigErrors.
    """
    log = log_path(path)
    return parse_log(read_text(log, MAX_LOG_BYTES)) if log.exists() else None


def sign_registry(path: Path, signer: RegistrySigner) -> tuple[LoadedRegistry, int]:
    """Sign a registry and log its changes; return it and the number of new log entries.

    Raises ConfigErrors, WrongSigningKey, InvalidChangeLog or OSError.
    """
    text = _read_source(path)
    loaded = parse_registry(text, str(path), verify=False)
    pubkey = loaded.registry.curator.pubkey
    if not is_same_key(pubkey, signer.pubkey):
        raise WrongSigningKey(
            f"the curator's key is {pubkey}, not that of this private key, "
            f"{signer.pubkey}; use the curator's key, or change curator.pubkey"
        )
    # Everything that may fail comes before the first write: log, text, and a second parse.
    signed = signer.sign(REGISTRY_KIND, loaded.tree)
    entries = read_log(path) or []
    added = extend_log(entries, signed, signer, _new_stamp())
    text = _set_key(text, path, "signature", signed)
    loaded = parse_registry(text, str(path))
    _overwrite(path, text)
    if added:
        _append_lines(log_path(path), render_log(added), is_first=not entries)
    return loaded, len(added)


def add_category(path: Path, slug: str, category: Table) -> LoadedRegistry:
    """Add a topic; the result is a new minor version without a signature.

    Raises ConfigErrors, SlugTaken or OSError.
    """
    text = _read_source(path)
    tree = parse_registry(text, str(path), verify=False).tree
    if slug in tree["categories"]:
        raise SlugTaken(f"there is a category {slug!r} already; change it in the file")
    # The signature covers the old content, so it would be invalid.
    text = _remove_signature(text, path)
    changed = tree | {"version": _next_minor(tree["version"]), "updated": _today()}
    changed["categories"] = tree["categories"] | {slug: category}
    changed.pop("signature", None)
    for key in ("version", "updated"):
        text = _set_key(text, path, key, changed)
    if is_toml(str(path)):
        text = f"{text.rstrip()}\n\n{_format_toml_category(slug, category)}"
    else:
        text = _format_json(changed)
    loaded = parse_registry(text, str(path))
    _overwrite(path, text)
    return loaded


def create_registry(path: Path, curator: str, pubkey: str) -> None:
    """Create a registry without topics; raises FileExistsError or ConfigErrors."""
    today = _today()
    curator_table = {"name": curator, "pubkey": pubkey}
    tree = {"version": "0.1.0", "updated": today, "curator": curator_table, "categories": {}}
    text = _format_json(tree)
    if is_toml(str(path)):
        text = (
            f'version = "0.1.0"\nupdated = "{today}"\n\n[curator]\n'
            f'name = {_quote(curator)}\npubkey = "{pubkey}"\n\n[categories]\n'
        )
    parse_registry(text, str(path))
    # Mode x: another process may have created the file meanwhile.
    with path.open("x", encoding="utf-8") as file:
        file.write(text)


def _overwrite(path: Path, text: str) -> None:
    path = _resolve_link(path)
    replace_file(path, text.encode(), path.stat().st_mode & 0o777)


def _resolve_link(path: Path) -> Path:
    """Return the target of a link; other paths stay as they are written."""
    try:
        return path.resolve(strict=True) if path.is_symlink() else path
    except (OSError, RuntimeError):  # a broken link or a loop: reading it raises the error
        return path


def _append_lines(log: Path, lines: str, *, is_first: bool) -> None:
    # Append lines to a log, after a newline that an editor may have removed.
    with log.open("a+b") as file:
        if not is_first:
            file.seek(-1, SEEK_END)
            lines = lines if file.read() == b"\n" else f"\n{lines}"
        file.write(lines.encode())


def _today() -> str:
    return datetime.now(UTC).date().isoformat()


def _read_source(path: Path) -> str:
    return read_text(path, MAX_REGISTRY_BYTES).replace("\r\n", "\n")


def _new_stamp() -> EntryStamp:
    now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    return EntryStamp(now, lambda: str(uuid4()))


def _next_minor(version: str) -> str:
    found = _VERSION.match(version)
    return f"{found[1]}.{int(found[2]) + 1}.0" if found else version


def _remove_signature(text: str, path: Path) -> str:
    if not is_toml(str(path)):
        tree = json.loads(text)
        tree.pop("signature", None)
        return _format_json(tree)
    span = _find_statement(text, "signature")
    return text if span is None else text[: span[0]] + text[span[1] :].lstrip("\n")


def _set_key(text: str, path: Path, key: str, tree: Table) -> str:
    if not is_toml(str(path)):
        return _format_json(json.loads(text) | {key: tree[key]})
    line = f"{key} = {_quote(tree[key])}"
    span = _find_statement(text, key)
    if span is not None:
        return text[: span[0]] + line + text[span[1] :]
    first = KeyLocator(text, scan_toml).index.statements[0].start
    return f"{text[:first]}{line}\n{text[first:]}"


def _find_statement(text: str, key: str) -> tuple[int, int] | None:
    for statement in KeyLocator(text, scan_toml).index.statements:
        if statement.path == (key,):
            return statement.start, statement.end
    return None


def _format_json(tree: Table) -> str:
    return json.dumps(tree, indent=2, ensure_ascii=False) + "\n"


def _format_toml_category(slug: str, category: Table) -> str:
    lines = [f"[categories.{slug}]"]
    lines += [f"{key} = {_quote(category[key])}" for key in ("name", "description")]
    lines += ["query_patterns = ["]
    lines += [f"    {_quote(pattern)}," for pattern in category["query_patterns"]] + ["]"]
    for source in category["sources"]:
        lines += ["", f"[[categories.{slug}.sources]]", f"rank = {source['rank']}"]
        lines += [f"{key} = {_quote(source[key])}" for key in ("name", "url", "type", "why")]
    return "\n".join(lines) + "\n"


def _quote(text: str) -> str:
    # A JSON string is also a TOML string, except for DEL, which no registry may contain.
    return json.dumps(text, ensure_ascii=False)
