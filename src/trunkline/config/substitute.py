"""References in strings: `${VAR}`, `${VAR:-default}`, `${file:path}`, and what VS Code writes.

    "Bearer ${TOKEN}" ──> parts: "Bearer ", Reference(variable, TOKEN) ──> "Bearer abc"

| reference | stands for |
|---|---|
| `${VAR}`, `${env:VAR}` | the variable; it must be set |
| `${VAR:-text}` | the variable, or the text where it is unset or empty |
| `${file:path}` | the text of a file, without white space around it; seen from the config file |
| `${input:id}` | the variable ID, or the default that the file's own `inputs` give |
| `${workspaceFolder}`, `${userHome}`, … | the folder the config file is about, the home, … |
| `$$` | a dollar sign, in our own files; a plain `$HOME` is left alone everywhere |

Clients' files have no `$$`, and what is no reference there is text: they were written for programs
that would have left it alone. So is a variable in `args` that the server's own `env` sets: some
servers look for it there, such as mcp-remote.

Rules upheld here:
1. Any text gives text or complaints. What was substituted is not looked at again.
2. No complaint shows what a reference stands for.
"""

import re
from collections.abc import Callable
from typing import Any, Literal, TypeGuard, cast

from msgspec import Struct

from trunkline.config.paths import path_from, read_small
from trunkline.config.surroundings import Problem, Surroundings
from trunkline.documents.errors import quoted
from trunkline.documents.lines import KeyPath
from trunkline.documents.parse import Table, as_table

_REFERENCE = re.compile(r"\$\$|\$\{([^{}]*)\}|\$\{")
_VARIABLE = re.compile(r"(?:env:)?([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?", re.DOTALL)
_NAMED = re.compile(r"(file|input):(.+)", re.DOTALL)
_FOREIGN = ("command:", "config:")
_PLACES = ("workspaceFolder", "workspaceFolderBasename", "userHome", "pathSeparator", "/")


class Reference(Struct, frozen=True):
    """What stands between `${` and `}`; "foreign" is what only VS Code itself could resolve."""

    kind: Literal["variable", "file", "input", "place", "foreign", "malformed"]
    name: str
    default: str | None = None


def each_text(value: Any, path: KeyPath, change: Callable[[str, KeyPath], str]) -> Any:
    """Return a text, a list of texts or a table of texts with every text in it changed.

    What is none of these stays as it is and is not looked into: it may be deeper than we can go.
    """

    def changed(item: Any, path: KeyPath) -> Any:
        return change(item, path) if isinstance(item, str) else item

    if isinstance(value, list):
        items = enumerate(cast("list[Any]", value))
        return [changed(item, (*path, index)) for index, item in items]
    if isinstance(value, dict):
        table = cast("Table", value)
        return {key: changed(item, (*path, key)) for key, item in table.items()}
    return changed(value, path)


def parts(text: str, is_client: bool) -> list[str | Reference]:
    """Cut `text` into what stands for itself and what stands for something else."""
    found: list[str | Reference] = []
    at = 0
    for match in _REFERENCE.finditer(text):
        part = _part(match, is_client)
        found += [text[at : match.start()], part]
        at = match.end()
    found.append(text[at:])
    return [part for part in found if part != ""]


def own_variables(table: Table, is_client: bool) -> frozenset[str]:
    """Return the variables that the args of a client's entry leave to its server.

    One that is handed on by its own name is no such: then both mean the client's.
    """
    env = as_table(table.get("env")) if is_client else None
    return frozenset(
        name
        for name, value in (env or {}).items()
        if isinstance(value, str)
        and all(isinstance(part, str) or part.name != name for part in parts(value, is_client))
    )


def left_to_server(found: list[str | Reference], own: frozenset[str]) -> list[str | Reference]:
    """Make text again of the variables that are in `own`."""
    return [f"${{{part.name}}}" if _is_plain(part) and part.name in own else part for part in found]


def _is_plain(part: str | Reference) -> TypeGuard[Reference]:
    return isinstance(part, Reference) and part.kind == "variable" and part.default is None


def _part(match: re.Match[str], is_client: bool) -> str | Reference:
    if match[0] == "$$":
        return "$$" if is_client else "$"
    reference = _read(match[1])
    return match[0] if is_client and reference.kind == "malformed" else reference


def _read(inside: str | None) -> Reference:
    if inside is None:
        return Reference("malformed", "")
    if inside in _PLACES:
        return Reference("place", inside)
    if found := _VARIABLE.fullmatch(inside):
        return Reference("variable", found[1], found[2])
    if found := _NAMED.fullmatch(inside):
        return Reference("file" if found[1] == "file" else "input", found[2])
    if inside.startswith(_FOREIGN):
        return Reference("foreign", inside)
    return Reference("malformed", inside)


def substitute(
    text: str, around: Surroundings, problem: Problem, own: frozenset[str] = frozenset()
) -> str:
    """Return `text` with its references resolved; each that cannot be is a problem.

    Variables in `own` are left to the server.
    """
    return "".join(
        part if isinstance(part, str) else _resolve(part, around, problem)
        for part in left_to_server(parts(text, around.is_client), own)
    )


def _resolve(reference: Reference, around: Surroundings, problem: Problem) -> str:
    name = reference.name
    match reference.kind:
        case "variable":
            return _variable(name, reference.default, around, problem)
        case "file":
            return _file(name, around, problem)
        case "input":
            return _input(name, around, problem)
        case "place":
            value = around.place(name)
            if value is None:
                problem(f"${{{name}}} is not known here", "set the variable HOME")
            return value or ""
        case "foreign":
            problem("only VS Code can resolve ${command:…} and ${config:…}", "write ${VAR}")
        case _:
            problem(
                "expected ${VAR}, ${VAR:-default} or ${file:path}", "write $${ for a literal ${"
            )
    return ""


def _variable(name: str, default: str | None, around: Surroundings, problem: Problem) -> str:
    value = around.environ.get(name)
    if default is not None:
        return value or default
    if value is None:
        problem(f"the variable {name} is not set", f"set it, or write ${{{name}:-default}}")
        return ""
    return value


def _input(id: str, around: Surroundings, problem: Problem) -> str:
    name = variable_of(id)
    value, default = around.environ.get(name), around.inputs.get(id)
    if value is None and default is None:
        problem(f"the input {quoted(id)} has no value", f"set the variable {name}")
    return value or default or ""


def variable_of(name: str) -> str:
    """Return the variable that carries an input, or a header: `api-key` becomes API_KEY."""
    plain = re.sub(r"[^A-Z0-9]", "_", name.upper())
    return f"_{plain}" if plain[:1].isdigit() or not plain else plain


def _file(name: str, around: Surroundings, problem: Problem) -> str:
    path = path_from(name, around)
    around.files.append(path)
    return (read_small(path, name, problem) or "").strip()
