"""`trunkline import`: the servers of the clients that are there, as one `trunkline.toml`.

Rules upheld here:
1. No file is overwritten unless that was asked for, and none is left half written.
2. What is written may hold secrets: it is for its owner alone. On a terminal, values that were
   given in confidence are not shown.
3. The gateway is not put behind itself.
"""

import os
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import msgspec

from trunkline.cli.client_config import NAME
from trunkline.cli.config_choice import locate
from trunkline.cli.screen import FAILED, WRONG, fail, say
from trunkline.config import (
    ClientFile,
    ConfigErrors,
    Draft,
    HttpSettings,
    find_client_files,
    is_loopback,
    is_ourselves,
    read,
    to_toml,
)
from trunkline.config.addresses import split_url
from trunkline.documents.parse import table_in
from trunkline.files import create_file, replace_file
from trunkline.journal.redact import Redactor, Rules, shorten, without_credentials
from trunkline.visible import visible_lines

_USUAL = HttpSettings()
_HIDDEN = "…"
_NAMES = ("_env", "_url", "_file", "_claim")
"""How keys end that only say where something is, or what it is called."""


def import_files(source: Path | None, target: Path | None, force: bool) -> None:
    """Write, or print, a configuration with the servers of one file, or of all that are found."""
    if source is not None:
        drafts = [_only(source)]
    else:
        drafts = _found(find_client_files(Path.home(), os.environ, sys.platform, Path.cwd()))
    listens = list(map(_listen, (*drafts, *_here())))
    drafts = [_without_us(draft, listens) for draft in drafts]
    if not any(draft.entries for draft in drafts):
        fail(FAILED, "no servers were found; name a file with --from FILE")
    if target is None:
        _print(drafts)
    else:
        text = to_toml(*drafts)
        write(target, text, force)
        count = len(tomllib.loads(text)["servers"])  # those that are equal are there once
        servers = "1 server" if count == 1 else f"{count} servers"
        say(f"wrote {target}, {servers}; try `trunkline check --config {target}`")


def _only(file: Path) -> Draft:
    try:
        return _told(read(file), "")
    except ConfigErrors as wrong:
        fail(WRONG, *map(str, wrong.errors))


def _found(files: list[ClientFile]) -> list[Draft]:
    """Read what can be read, and say what there was."""
    drafts: list[Draft] = []
    for file in files:
        try:
            drafts.append(_told(read(file.path), f"{file.client}: "))
        except ConfigErrors as wrong:
            say(f"{file.client}: {file.path}: left out")
            say(*(f"  {error}" for error in wrong.errors))
    return drafts


def _told(draft: Draft, client: str) -> Draft:
    names = ", ".join(entry.name for entry in draft.entries) or "no servers"
    say(f"{client}{draft.file}: {names}", *(f"  note: {note}" for note in draft.notes))
    return draft


def _here() -> list[Draft]:
    """Return the configuration that is there already, if one is that can be read."""
    path = locate(None, os.environ, Path.cwd())
    try:
        return [] if path is None else [read(path)]
    except ConfigErrors:
        return []  # it is not what was asked for


def _listen(draft: Draft) -> object:
    return table_in(draft.tables, "http").get("listen")


def _without_us(draft: Draft, listens: Sequence[object]) -> Draft:
    reasons = {entry.name: why_ours(entry.name, entry.table, listens) for entry in draft.entries}
    for name, why in reasons.items():
        if why is not None:
            say(f"  left out: {name}, which is Trunkline itself: {why}")
    others = tuple(entry for entry in draft.entries if reasons[entry.name] is None)
    return msgspec.structs.replace(draft, entries=others)


def why_ours(name: str, table: dict[str, Any], listens: Sequence[object]) -> str | None:
    """Return why an entry is this gateway, None if it is another server.

    `listens` are the addresses at which it is known to listen. Elsewhere on this machine a url is
    ours only if all of it is as we have it pasted: other servers have `/mcp` as well.
    """
    if _starts_us(table):
        return "its command is this program"
    url = table.get("url")
    if any(is_ourselves(url, listen) for listen in listens):
        return "its url is where http.listen has it listen"
    parts = split_url(url) if isinstance(url, str) else None
    if parts is None or name.lower() != NAME or not is_loopback(parts.hostname or ""):
        return None
    ways_in = {_USUAL.path, _USUAL.sse_path}
    return "its name and its url are those to paste" if parts.path in ways_in else None


def _starts_us(table: dict[str, Any]) -> bool:
    """Tell whether an entry starts this very program."""
    words = [str(table.get("command", "")), *map(str, table.get("args", ()))]
    for place, word in enumerate(words):
        is_name = Path(word).name in {"trunkline", "trunkline.exe"}
        if is_name and "serve" in words[place + 1 :]:
            return True
    return False


def _print(drafts: list[Draft]) -> None:
    if sys.stdout.isatty():
        say("what may be secret is not shown here; --write PATH writes it")
        print(visible_lines(to_toml(*map(_discreet, drafts))))
    else:
        print(to_toml(*drafts))


def _discreet(draft: Draft) -> Draft:
    redactor = Redactor(Rules())
    entries = [
        msgspec.structs.replace(entry, table=_table(entry.table, redactor))
        for entry in draft.entries
    ]
    tables = _table(draft.tables, redactor)
    return msgspec.structs.replace(draft, entries=tuple(entries), tables=tables)


def _table(table: dict[str, Any], redactor: Redactor) -> dict[str, Any]:
    return {key: _shown(key, value, redactor) for key, value in table.items()}


def _shown(key: str, value: Any, redactor: Redactor) -> Any:
    """Return what may be seen of a value: the shape of all, and the text of what is no secret."""
    if isinstance(value, dict):
        table = cast("dict[str, Any]", value)
        hidden = key in {"env", "headers"}
        return dict.fromkeys(table, _HIDDEN) if hidden else _table(table, redactor)
    if isinstance(value, list):
        return [_shown(key, item, redactor) for item in cast("list[Any]", value)]
    if not isinstance(value, str) or key.endswith(_NAMES):
        return value
    if redactor.hides(key):
        return _HIDDEN
    return shorten(value) if key == "args" else without_credentials(value)


def write(target: Path, text: str, force: bool) -> None:
    """Write a file that only its owner can read; one that is there is left alone unless forced."""
    if target.exists() and not force:
        fail(FAILED, f"{target} is there already; --force overwrites it")
    try:
        (replace_file if force else create_file)(target, text.encode())
    except FileExistsError:
        fail(FAILED, f"{target} is there already; --force overwrites it")
    except OSError as why:
        fail(FAILED, f"cannot write {target}: {why.strerror or why}")
