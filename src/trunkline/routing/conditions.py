"""Conditions: the `when` of a policy rule, in CEL (Common Expression Language).

    the bytes of `arguments` ──> read_strict_arguments ──> StrictArguments, or ValueError
    "has(args.path) && args.path.startsWith('/etc')" ──> Condition ──holds──> True, False,
                                                                        or ConditionFailed

A condition that reads a missing key fails: it is neither true nor false, and the policy decides
what follows. This is the only module that imports the CEL library, and it does so when the first
condition is compiled: the library is an extra, because it has no wheels for musl (Alpine).

Rules upheld here:
1. An invalid condition is rejected when it is compiled, with line and column: syntax, names,
   functions, known types, and results that are not boolean.
2. A condition sees only its inputs: no clock, files or network.
3. Evaluation is cheap: sources are short, iteration is bounded, arguments are limited in size and
   depth.
4. Rules and servers read the same arguments: duplicate keys, inexact integers, NUL characters and
   unpaired surrogates are rejected.
"""

import json
import re
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple, cast

import msgspec

from trunkline.jsonrpc import Raw

MAX_ARGUMENT_BYTES = 1024 * 1024
MAX_ARGUMENT_DEPTH = 64

# The length limit of a condition, in characters.
MAX_CONDITION_LENGTH = 2000

# The most values that the arguments of an iterating condition may contain.
MAX_ITERATED_VALUES = 1000

# The variables of conditions.
VARIABLES = (
    *("args", "tool", "backend", "kind"),
    *("subject", "role", "roles", "client", "annotations"),
)

_ERROR_POSITION = re.compile(r"ERROR: <input>:(-?\d+):(-?\d+): (?:Syntax error: )?([^\n]*)")
_ITERATION = re.compile(r"\b(all|exists|exists_one|map|filter|in)\b")

_MIN_INTEGER, _MAX_INTEGER = -(2**63), 2**64 - 1
_TOO_DEEP = f"expected at most {MAX_ARGUMENT_DEPTH} levels"

_decode_arguments = msgspec.json.Decoder(dict[str, Any]).decode


# Arguments


class StrictArguments(NamedTuple):
    """Parsed arguments, and how many values they contain at all levels."""

    members: dict[str, Any]
    value_count: int


# The arguments of a call without any: the same as an empty object.
NO_ARGUMENTS = StrictArguments({}, 0)


def read_strict_arguments(raw: Raw | None) -> StrictArguments:
    """Parse arguments; raises ValueError with the reason, which shows no value."""
    if raw is None:
        return NO_ARGUMENTS
    if memoryview(raw).nbytes > MAX_ARGUMENT_BYTES:
        raise ValueError(f"expected at most {MAX_ARGUMENT_BYTES} bytes")
    try:
        members = _decode_arguments(raw)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    size, keys = _count_values(members)
    text = bytes(raw)
    # Each key has one colon, so as many colons as decoded keys prove that no key was a duplicate.
    if text.count(b":") != keys:
        _find_duplicates(text.decode())
    return StrictArguments(members, size)


def _reject_duplicates(pairs: list[tuple[str, Any]]) -> None:
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            raise ValueError(f"duplicate member {key!r}")
        seen.add(key)


def _skip_number(_: str) -> None:
    """Replace a number, whose value is not needed."""


_find_duplicates = json.JSONDecoder(
    object_pairs_hook=_reject_duplicates, parse_int=_skip_number
).decode


def _count_values(members: dict[str, Any]) -> tuple[int, int]:
    """Count all values and keys; raises ValueError for a value that rules cannot read exactly."""
    size = depth = keys = 0
    level: list[Any] = [members]
    while level:
        depth += 1
        if depth > MAX_ARGUMENT_DEPTH:
            raise ValueError(_TOO_DEEP)
        size += len(level)
        below: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                table = cast("dict[str, Any]", value)
                keys += len(table)
                below += table.values()
                _reject_nul("".join(table))
            elif isinstance(value, list):
                below += value
            elif isinstance(value, str):
                _reject_nul(value)
            elif isinstance(value, int) and not _MIN_INTEGER <= value <= _MAX_INTEGER:
                raise ValueError("expected whole numbers of 64 bits")
        level = below
    return size, keys


def _reject_nul(text: str) -> None:
    if "\0" in text:
        raise ValueError("expected text without NUL")


# Conditions


class ConditionError(ValueError):
    """An invalid condition: the reason, and the position counted from 1."""

    def __init__(self, reason: str, line: int = 1, column: int = 1) -> None:
        super().__init__(reason)
        self.reason, self.line, self.column = reason, line, column


class ConditionsUnavailable(Exception):
    """The CEL library cannot be imported, so no condition can be compiled."""


class ConditionFailed(Exception):
    """A condition that could not be evaluated. The text is for operators: it may show arguments."""


class Condition:
    """A compiled condition."""

    def __init__(self, source: str) -> None:
        """Compile the source; raises ConditionError or ConditionsUnavailable."""
        if len(source) > MAX_CONDITION_LENGTH:
            raise ConditionError(
                f"expected at most {MAX_CONDITION_LENGTH} characters, got {len(source)}"
            )
        self.source = source
        self._expression = _compile(source, VARIABLES)
        kind = self._expression.return_type().name()
        if kind.lower() not in {"bool", "dyn"}:
            raise ConditionError(f"expected a boolean result, got {kind.lower()}")
        self.variables = frozenset(name for name in VARIABLES if _uses_variable(source, name))
        """The variables that it uses."""
        self._fact_names = tuple(sorted(self.variables - {"args"}))
        self._iterates = _ITERATION.search(source) is not None

    def holds(self, facts: Mapping[str, Any], arguments: StrictArguments = NO_ARGUMENTS) -> bool:
        """Evaluate the condition; raises ConditionFailed."""
        if self._iterates and arguments.value_count > MAX_ITERATED_VALUES:
            raise ConditionFailed(f"expected at most {MAX_ITERATED_VALUES} values")
        inputs: dict[str, Any] = {"args": arguments.members}
        for name in self._fact_names:
            fact = inputs[name] = facts[name]
            if isinstance(fact, str) and "\0" in fact:
                # The library would truncate the text there.
                raise ConditionFailed("expected text without NUL")
        try:
            answer = self._expression.eval(data=inputs).value()
        except RuntimeError as error:
            raise ConditionFailed(str(error)) from None
        if not isinstance(answer, bool):
            raise ConditionFailed(f"expected true or false, got {answer!r}")
        return answer

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Condition) and self.source == other.source

    def __hash__(self) -> int:
        return hash(self.source)


def _uses_variable(source: str, name: str) -> bool:
    """Return whether a condition uses a variable: then it does not compile without it."""
    try:
        _compile(source, tuple(known for known in VARIABLES if known != name))
    except ConditionError:
        return True
    return False


def _compile(source: str, names: tuple[str, ...]) -> Any:
    try:
        return _environment(names).compile(source)
    except RuntimeError as error:
        raise _parse_error(str(error)) from None


@cache
def _environment(names: tuple[str, ...]) -> Any:
    try:
        # Imported late: only gateways with conditions need it. The library has no type stubs.
        from cel_expr_python import cel  # noqa: PLC0415  # pyright: ignore[reportMissingTypeStubs]
    except ImportError as error:
        is_missing = isinstance(error, ModuleNotFoundError)
        problem = "is not installed" if is_missing else f"cannot be imported: {error}"
        raise ConditionsUnavailable(
            f"conditions need the package cel-expr-python, which {problem}"
        ) from None

    text = cel.Type.STRING
    types = dict.fromkeys(VARIABLES, text) | {
        "args": cel.Type.Map(text, cel.Type.DYN),
        "roles": cel.Type.List(text),
        "annotations": cel.Type.Map(text, cel.Type.BOOL),
    }
    return cel.NewEnv(variables={name: types[name] for name in names})


def _parse_error(text: str) -> ConditionError:
    """Reduce the library's error to one line and a position."""
    found = _ERROR_POSITION.search(text)
    if found is None:
        return ConditionError("nested too deeply" if "recursion" in text else "cannot be read")
    line, column = max(1, int(found[1])), max(1, int(found[2]))
    reason, _, _ = found[3].partition(" expecting {")
    reason = reason.replace(" (in container '')", "").replace("'<EOF>'", "the end")
    reason = reason.removesuffix(" [INVALID_ARGUMENT]")
    return ConditionError(reason[:1].lower() + reason[1:], line, column)
