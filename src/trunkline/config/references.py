"""References, paths and env files in a configuration.

    "Bearer ${TOKEN}" ──> parts: "Bearer ", Reference(variable, TOKEN) ──> "Bearer abc"

| reference | value |
|---|---|
| `${VAR}`, `${env:VAR}` | the environment variable; it must be set |
| `${VAR:-text}` | the variable, or the text if the variable is unset or empty |
| `${file:path}` | the content of a file, without surrounding white space |
| `${input:id}` | the variable ID, or the default in the file's own `inputs` |
| `${workspaceFolder}`, `${userHome}`, … | the folder of the configuration, the home directory, … |
| `$$` | a dollar sign, in our own files; a plain `$HOME` is never a reference |

In clients' files `$$` and invalid references are plain text. A variable in `args` that the server's
own `env` sets is plain text too: some servers, such as mcp-remote, resolve it themselves.

Invariants:
1. Any text gives text or errors. Resolved values are not searched for references again.
2. Errors never show a resolved value or the content of a file.
3. Files that a configuration names are read up to a limit.
"""

import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeGuard, cast

from msgspec import Struct, field

from trunkline.documents.errors import AddError, KeyPath, quote
from trunkline.documents.parser import Table, as_table
from trunkline.printable import PLAIN_VARIABLES

# Called with the reason and the fix of a problem.
ReportProblem = Callable[[str, str], None]

# Editors keep project settings in these folders; the project is the folder above.
_PROJECT_FOLDERS = (".vscode", ".cursor")


class ResolveContext(Struct, frozen=True):
    """What references are resolved against: environment, folder, and VS Code inputs.

    Files that are read are appended to `files`; a reload watches them. Values from outside of the
    configuration are appended to `resolved`; they are masked in logs and errors.
    """

    environ: Mapping[str, str]
    folder: Path
    inputs: Mapping[str, str | None] = {}
    is_client: bool = False
    files: list[Path] = field(default_factory=list[Path])
    resolved: list[str] = field(default_factory=list[str])

    @property
    def home(self) -> str | None:
        """The user's home directory, if the environment names it."""
        return self.environ.get("HOME") or self.environ.get("USERPROFILE")

    def vscode_place(self, name: str) -> str | None:
        """Return the value of a VS Code variable such as `workspaceFolder`."""
        project = self.folder.parent if self.folder.name in _PROJECT_FOLDERS else self.folder
        return {
            "workspaceFolder": str(project),
            "workspaceFolderBasename": project.name,
            "userHome": self.home,
        }.get(name, os.sep)  # pathSeparator, and its short form /


# The size limit of files in `${file:…}` and `env_file`.
MAX_REFERENCED_FILE_BYTES = 64 * 1024


def resolve_path(name: str, context: ResolveContext) -> Path:
    """Return `name` relative to the configuration file; `~/` is the home directory."""
    if name.startswith("~/") and context.home:
        return Path(context.home, name[2:])
    return context.folder / name


def is_relative(name: str) -> bool:
    """Whether a path depends on the folder of the configuration file."""
    return not name.startswith("~/") and not Path(name).is_absolute()


def with_absolute_paths(table: Table, keys: Iterable[str], folder: Path) -> Table:
    """Return `table` with the files of `keys` relative to `folder` made absolute."""
    files = {key: table[key] for key in keys if key in table}
    return table | {key: str(folder / name) for key, name in files.items() if is_relative(name)}


def check_readable(path: Path, key_path: KeyPath, add_error: AddError) -> None:
    """Report a file that is missing or not readable."""
    try:
        path.open("rb").close()
    except (OSError, ValueError) as error:
        fix = "check its name, as seen from the config file, and its permissions"
        add_error(key_path, f"cannot be read: {_os_reason(error)}", fix)


def read_small_text(path: Path, name: str, problem: ReportProblem) -> str | None:
    """Return the text of a file, or None after reporting a problem; `name` is shown in it."""
    shown = quote(name)
    try:
        with path.open("rb") as file:
            # One byte more than allowed, to recognise a longer file.
            data = file.read(MAX_REFERENCED_FILE_BYTES + 1)
        if len(data) > MAX_REFERENCED_FILE_BYTES:
            problem(
                f"the file {shown} is longer than {MAX_REFERENCED_FILE_BYTES} bytes",
                "name a smaller one",
            )
            return None
        # Some editors write a byte order mark, which is not part of the first name.
        text = data.decode("utf-8-sig")
        if "\0" not in text:
            return text
        problem(f"the file {shown} is not text", "name another")
    except UnicodeDecodeError:
        problem(f"the file {shown} is not UTF-8", "save it as UTF-8")
    except (OSError, ValueError) as error:
        fix = "check its name and its permissions"
        problem(f"the file {shown} cannot be read: {_os_reason(error)}", fix)
    return None


def _os_reason(error: OSError | ValueError) -> str:
    # ValueError: a NUL in the name
    return (getattr(error, "strerror", None) or "not a file name").lower()


_ENV_LINE = re.compile(r"(?:export\s+)?([^\s=#]+)\s*=\s*(.*)")
# Possessive (`*+`), so that a missing quote causes no backtracking.
_ENV_QUOTED = re.compile(r"""("(?:[^"\\]|\\.)*+"|'[^']*+')\s*(?:#.*)?""")
_ENV_COMMENT = re.compile(r"(?:^|\s)#.*")
_ENV_ESCAPE = re.compile(r"\\(.)")
_ENV_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}


def parse_env_file(text: str, name: str, problem: ReportProblem) -> dict[str, str]:
    """Return the variables of `text`; report lines that are not KEY=VALUE."""
    variables: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        found = _ENV_LINE.fullmatch(stripped)
        if found is None:
            # Do not show the line: it may be part of a secret.
            problem(f"line {number} of {name} is not KEY=VALUE", "fix it, or put # before it")
        else:
            variables[found[1]] = _env_value(found[2])
    return variables


def _env_value(text: str) -> str:
    found = _ENV_QUOTED.fullmatch(text)
    if found is None:
        return _ENV_COMMENT.sub("", text, count=1).rstrip()
    inside = found[1][1:-1]
    if found[1][0] == "'":
        return inside
    return _ENV_ESCAPE.sub(lambda escape: _ENV_ESCAPES.get(escape[1], escape[1]), inside)


# The last alternative finds an unclosed reference, to report it.
_REFERENCE_PATTERN = re.compile(r"\$\$|\$\{([^{}]*)\}|\$\{")
_VARIABLE_PATTERN = re.compile(r"(?:env:)?([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?", re.DOTALL)
_NAMED_PATTERN = re.compile(r"(file|input):(.+)", re.DOTALL)
# References of VS Code, and of mcp-hub
_FOREIGN_PREFIXES = ("command:", "config:", "cmd:")
_VSCODE_PLACES = ("workspaceFolder", "workspaceFolderBasename", "userHome", "pathSeparator", "/")


class Reference(Struct, frozen=True):
    """A parsed `${…}`; "foreign" ones can be resolved by other programs only."""

    kind: Literal["variable", "file", "input", "place", "foreign", "malformed"]
    name: str
    default: str | None = None


def map_text(value: Any, path: KeyPath, change: Callable[[str, KeyPath], str]) -> Any:
    """Apply `change` to a text, or to the texts directly in a list or table.

    Other values are returned as they are; nested values are not changed.
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


def parse_references(text: str, is_client: bool) -> list[str | Reference]:
    """Split `text` into literal parts and references."""
    found: list[str | Reference] = []
    at = 0
    for match in _REFERENCE_PATTERN.finditer(text):
        part = _parse_match(match, is_client)
        found += [text[at : match.start()], part]
        at = match.end()
    found.append(text[at:])
    return [part for part in found if part != ""]


def needed_variables(text: str, context: ResolveContext) -> list[str]:
    """Return the environment variables without which `text` cannot be resolved."""
    found = [p for p in parse_references(text, context.is_client) if isinstance(p, Reference)]
    return [
        variable_name(part.name) if part.kind == "input" else part.name
        for part in found
        if (part.kind == "variable" and part.default is None)
        or (part.kind == "input" and context.inputs.get(part.name) is None)
    ]


def has_valid_references(text: str, context: ResolveContext) -> bool:
    """Whether `text` has references, and all of them are well-formed."""
    found = parse_references(text, context.is_client)
    kinds = {part.kind for part in found if isinstance(part, Reference)}
    return bool(kinds) and "malformed" not in kinds


def server_variables(table: Table, is_client: bool) -> frozenset[str]:
    """Return the variables that a client's entry leaves to its server to resolve.

    A variable that `env` only passes on under its own name is resolved here.
    """
    env = as_table(table.get("env")) if is_client else None
    return frozenset(
        name
        for name, value in (env or {}).items()
        if isinstance(value, str)
        and all(
            isinstance(part, str) or part.name != name
            for part in parse_references(value, is_client)
        )
    )


def keep_server_variables(
    found: list[str | Reference], own: frozenset[str]
) -> list[str | Reference]:
    """Turn references to variables in `own` back into text."""
    return [
        f"${{{part.name}}}" if _is_plain_variable(part) and part.name in own else part
        for part in found
    ]


def _is_plain_variable(part: str | Reference) -> TypeGuard[Reference]:
    return isinstance(part, Reference) and part.kind == "variable" and part.default is None


def _parse_match(match: re.Match[str], is_client: bool) -> str | Reference:
    if match[0] == "$$":
        return "$$" if is_client else "$"
    reference = _parse_reference(match[1])
    return match[0] if is_client and reference.kind == "malformed" else reference


def _parse_reference(inside: str | None) -> Reference:
    if inside is None:
        return Reference("malformed", "")
    if inside in _VSCODE_PLACES:
        return Reference("place", inside)
    if found := _VARIABLE_PATTERN.fullmatch(inside):
        return Reference("variable", found[1], found[2])
    if found := _NAMED_PATTERN.fullmatch(inside):
        return Reference("file" if found[1] == "file" else "input", found[2])
    if inside.startswith(_FOREIGN_PREFIXES):
        return Reference("foreign", inside)
    return Reference("malformed", inside)


def resolve_references(
    text: str, context: ResolveContext, problem: ReportProblem, own: frozenset[str] = frozenset()
) -> str:
    """Return `text` with its references resolved; report those that cannot be.

    Variables in `own` are left to the server.
    """
    return "".join(
        part if isinstance(part, str) else _resolve_reference(part, context, problem)
        for part in keep_server_variables(parse_references(text, context.is_client), own)
    )


def _resolve_reference(
    reference: Reference, context: ResolveContext, problem: ReportProblem
) -> str:
    name = reference.name
    match reference.kind:
        case "variable":
            return _resolve_variable(name, reference.default, context, problem)
        case "file":
            value = _resolve_file(name, context, problem)
            context.resolved.append(value)
            return value
        case "input":
            return _resolve_input(name, context, problem)
        case "place":
            value = context.vscode_place(name)
            if value is None:
                problem(f"${{{name}}} is not known here", "set the variable HOME")
            return value or ""
        case "foreign":
            kind = name.partition(":")[0]
            problem(f"only another program can resolve ${{{kind}:…}}", "write ${VAR}")
        case _:
            problem(
                "expected ${VAR}, ${VAR:-default} or ${file:path}", "write $${ for a literal ${"
            )
    return ""


def _resolve_variable(
    name: str, default: str | None, context: ResolveContext, problem: ReportProblem
) -> str:
    value = context.environ.get(name)
    if value and name not in PLAIN_VARIABLES:
        context.resolved.append(value)
    if default is not None:
        # As in a shell, `:-` also replaces an empty value.
        return value or default
    if value is None:
        problem(f"the variable {name} is not set", f"set it, or write ${{{name}:-default}}")
        return ""
    return value


def _resolve_input(id: str, context: ResolveContext, problem: ReportProblem) -> str:
    name = variable_name(id)
    value, default = context.environ.get(name), context.inputs.get(id)
    if value is None and default is None:
        problem(f"the input {quote(id)} has no value", f"set the variable {name}")
    context.resolved.append(value or "")
    return value or default or ""


def variable_name(name: str) -> str:
    """Return the environment variable for an input or header: `api-key` becomes API_KEY."""
    plain = re.sub(r"[^A-Z0-9]", "_", name.upper())
    return f"_{plain}" if plain[:1].isdigit() or not plain else plain


def _resolve_file(name: str, context: ResolveContext, problem: ReportProblem) -> str:
    path = resolve_path(name, context)
    # Even if it cannot be read: a reload then notices when it appears.
    context.files.append(path)
    # Files with secrets usually end with a newline.
    return (read_small_text(path, name, problem) or "").strip()
