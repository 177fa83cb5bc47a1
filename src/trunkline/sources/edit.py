"""Edit: a registry and its change log on disk, written by `trunkline sources sign` and `add`.

JSON is written anew, indented; of TOML only the lines in question change, and comments stay.

Rules upheld here:
1. A file is replaced as a whole or not at all, and keeps its permissions. Where a link leads to it,
   it is the file that is replaced, and its log is the one beside the file.
2. What is written is a registry: it was parsed again before it took the place of the old one.
"""

import json
import re
from datetime import UTC, datetime
from io import SEEK_END
from pathlib import Path
from typing import Any
from uuid import uuid4

from trunkline.documents.lines import Lines
from trunkline.documents.reading import read_text
from trunkline.documents.toml_lines import scan_toml
from trunkline.files import replace_file
from trunkline.sources.changes import Stamp, extend_log, parse_log, render_log
from trunkline.sources.keys import REGISTRY, Signer, is_same_key
from trunkline.sources.load import MAX_FILE, Loaded, is_toml, parse

MAX_LOG = 64 * 1024 * 1024
"""How long a change log may be, in bytes."""

_VERSION = re.compile(r"([0-9]+)\.([0-9]+)\.([0-9]+)")


class NotYours(ValueError):
    """A registry, or a log, of another key."""


class Taken(ValueError):
    """A slug that is in use already."""


def log_path(path: Path) -> Path:
    """Return where the change log of a registry is: beside it, and not beside a link to it."""
    path = _followed(path)
    return path.with_name(f"{path.name}.log")


def read_log(path: Path) -> list[dict[str, Any]] | None:
    """Return the entries beside a registry, None without a log; raises BadLog or ConfigErrors."""
    log = log_path(path)
    return parse_log(read_text(log, MAX_LOG)) if log.exists() else None


def sign_file(path: Path, signer: Signer) -> tuple[Loaded, int]:
    """Sign a registry and write its changes down; return it and how many entries that took.

    Raises ConfigErrors, NotYours, BadLog or OSError.
    """
    text = _text(path)
    loaded = parse(text, str(path), verify=False)
    if not is_same_key(loaded.registry.curator.pubkey, signer.pubkey):
        raise NotYours(
            f"the curator's key is {loaded.registry.curator.pubkey}, not that of this private key, "
            f"{signer.pubkey}; use the other, or change curator.pubkey"
        )
    signed = signer.sign(REGISTRY, loaded.tree)
    entries = read_log(path) or []
    added = extend_log(entries, signed, signer, _stamp())
    text = _with_key(text, path, "signature", signed)
    loaded = parse(text, str(path))
    _replace(path, text)
    if added:
        _append(log_path(path), render_log(added), is_first=not entries)
    return loaded, len(added)


def add_category(path: Path, slug: str, category: dict[str, Any]) -> Loaded:
    """Add a topic, as a new minor version without a signature.

    Raises ConfigErrors, Taken or OSError.
    """
    text = _text(path)
    tree = parse(text, str(path), verify=False).tree
    if slug in tree["categories"]:
        raise Taken(f"there is a category {slug!r} already; change it in the file")
    text = _without_signature(text, path)
    changed = tree | {"version": _next_minor(tree["version"]), "updated": _today()}
    changed["categories"] = tree["categories"] | {slug: category}
    changed.pop("signature", None)
    for key in ("version", "updated"):
        text = _with_key(text, path, key, changed)
    if is_toml(str(path)):
        text = f"{text.rstrip()}\n\n{_toml_category(slug, category)}"
    else:
        text = _json(changed)
    loaded = parse(text, str(path))
    _replace(path, text)
    return loaded


def new_registry(path: Path, curator: str, pubkey: str) -> None:
    """Begin a registry without topics; raises FileExistsError or ConfigErrors."""
    today = _today()
    who = {"name": curator, "pubkey": pubkey}
    text = _json({"version": "0.1.0", "updated": today, "curator": who, "categories": {}})
    if is_toml(str(path)):
        text = (
            f'version = "0.1.0"\nupdated = "{today}"\n\n[curator]\n'
            f'name = {_quoted(curator)}\npubkey = "{pubkey}"\n\n[categories]\n'
        )
    parse(text, str(path))
    with path.open("x", encoding="utf-8") as file:
        file.write(text)


def _replace(path: Path, text: str) -> None:
    """Put `text` in the place of a file that is there; raises OSError."""
    path = _followed(path)
    replace_file(path, text.encode(), path.stat().st_mode & 0o777)


def _followed(path: Path) -> Path:
    """Return the file that a link leads to in the end; all else stays as it was written."""
    try:
        return path.resolve(strict=True) if path.is_symlink() else path
    except (OSError, RuntimeError):  # it leads nowhere, or in circles: whoever reads it says so
        return path


def _append(log: Path, lines: str, *, is_first: bool) -> None:
    """Add lines to a log, though an editor may have left its last one without an end."""
    with log.open("a+b") as file:
        if not is_first:
            file.seek(-1, SEEK_END)
            lines = lines if file.read() == b"\n" else f"\n{lines}"
        file.write(lines.encode())


def _today() -> str:
    return datetime.now(UTC).date().isoformat()


def _text(path: Path) -> str:
    return read_text(path, MAX_FILE).replace("\r\n", "\n")


def _stamp() -> Stamp:
    now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    return Stamp(now, lambda: str(uuid4()))


def _next_minor(version: str) -> str:
    found = _VERSION.match(version)
    return f"{found[1]}.{int(found[2]) + 1}.0" if found else version


def _without_signature(text: str, path: Path) -> str:
    if not is_toml(str(path)):
        tree = json.loads(text)
        tree.pop("signature", None)
        return _json(tree)
    place = _statement(text, "signature")
    return text if place is None else text[: place[0]] + text[place[1] :].lstrip("\n")


def _with_key(text: str, path: Path, key: str, tree: dict[str, Any]) -> str:
    """Return `text` with a key of the outermost table as `tree` has it."""
    if not is_toml(str(path)):
        return _json(json.loads(text) | {key: tree[key]})
    line = f"{key} = {_quoted(tree[key])}"
    place = _statement(text, key)
    if place is not None:
        return text[: place[0]] + line + text[place[1] :]
    first = Lines(text, scan_toml).index.statements[0].start
    return f"{text[:first]}{line}\n{text[first:]}"


def _statement(text: str, key: str) -> tuple[int, int] | None:
    for statement in Lines(text, scan_toml).index.statements:
        if statement.path == (key,):
            return statement.start, statement.end
    return None


def _json(tree: dict[str, Any]) -> str:
    return json.dumps(tree, indent=2, ensure_ascii=False) + "\n"


def _toml_category(slug: str, category: dict[str, Any]) -> str:
    lines = [f"[categories.{slug}]"]
    lines += [f"{key} = {_quoted(category[key])}" for key in ("name", "description")]
    lines += ["query_patterns = ["]
    lines += [f"    {_quoted(pattern)}," for pattern in category["query_patterns"]] + ["]"]
    for source in category["sources"]:
        lines += ["", f"[[categories.{slug}.sources]]", f"rank = {source['rank']}"]
        lines += [f"{key} = {_quoted(source[key])}" for key in ("name", "url", "type", "why")]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    # A JSON string is one of TOML as well, but for DEL, which no registry has in it.
    return json.dumps(text, ensure_ascii=False)
