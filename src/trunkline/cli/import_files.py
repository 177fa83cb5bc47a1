"""`trunkline import`: the servers of the clients that are there, as one `trunkline.toml`.

Rules upheld here:
1. No file is overwritten unless that was asked for, and none is left half written.
2. What is written may hold secrets: it is for its owner alone. On a terminal, values that were
   given in confidence are not shown.
3. The gateway is not put behind itself.
"""

import os
import sys
from pathlib import Path
from typing import Any, cast

import msgspec

from trunkline.cli.screen import FAILED, WRONG, fail, say
from trunkline.config import ClientFile, ConfigErrors, Draft, find_client_files, read, to_toml
from trunkline.files import create_file, replace_file
from trunkline.journal.redact import Redactor, Rules, shorten, without_credentials
from trunkline.visible import visible_lines

_HIDDEN = "…"
_NAMES = ("_env", "_url", "_file", "_claim")
"""How keys end that only say where something is, or what it is called."""


def import_files(source: Path | None, target: Path | None, force: bool) -> None:
    """Write, or print, a configuration with the servers of one file, or of all that are found."""
    if source is not None:
        drafts = [_only(source)]
    else:
        drafts = _found(find_client_files(Path.home(), os.environ, sys.platform, Path.cwd()))
    drafts = [_without_us(draft) for draft in drafts]
    if not any(draft.entries for draft in drafts):
        fail(FAILED, "no servers were found; name a file with --from FILE")
    if target is None:
        _print(drafts)
    else:
        write(target, to_toml(*drafts), force)
        count = sum(len(draft.entries) for draft in drafts)
        say(f"wrote {target}, {count} servers; try `trunkline check --config {target}`")


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


def _without_us(draft: Draft) -> Draft:
    ours = [entry.name for entry in draft.entries if is_ours(entry.table)]
    if ours:
        say(f"  left out: {', '.join(ours)}, which is Trunkline itself")
    others = tuple(entry for entry in draft.entries if entry.name not in ours)
    return msgspec.structs.replace(draft, entries=others)


def is_ours(table: dict[str, Any]) -> bool:
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
