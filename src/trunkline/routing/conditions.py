"""Conditions: the `when` of a policy rule, in CEL (Common Expression Language).

    the bytes of `arguments` ──> read_strict_arguments ──> StrictArguments, or ValueError
    "has(args.path) && args.path.startsWith('/etc')" ──> Condition ──holds──> True, False,
                                                                        or ConditionFailed

A condition that reads a missing key fails: it is neither true nor false, and the policy decides
what follows. This is the only module that imports the CEL library, when the first condition is
compiled. The library is an extra, because it has no wheels for musl (Alpine).

Rules upheld here:
1. An invalid condition is rejected when it is compiled, with line and column: syntax, names,
   functions, known types, and results that are not boolean.
2. A condition sees only its inputs: no clock, files or network.
3. Evaluation takes a bounded time, because the CEL library cannot be interrupted: a condition
   refuses arguments for which it could need more than MAX_WORK. Callers choose no regular
   expressions.
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

MAX_ARGUMENT_VALUES = 20_000

MAX_WORK = 8 * 1024 * 1024
"""How much work one evaluation may be estimated to need: up to 16 ms (`Cost.estimate`)."""

# The variables of conditions.
VARIABLES = (
    *("args", "tool", "backend", "kind"),
    *("subject", "role", "roles", "client", "annotations"),
)

_ERROR_POSITION = re.compile(r"ERROR: <input>:(-?\d+):(-?\d+): (?:Syntax error: )?([^\n]*)")
_ITERATION = re.compile(r"\b(all|exists|exists_one|map|filter|in)\b")
_MACROS = frozenset(("all", "exists", "exists_one", "map", "filter"))
_COLLECTORS = frozenset(("map", "filter"))  # they copy the list for each value
_MAX_ITERATIONS = 10_000  # the library stops there
_CHEAP_FUNCTIONS = frozenset(("has", "startsWith", "endsWith"))
_OPERATORS = frozenset("+=<>")
_TOKEN = re.compile(
    r"//[^\n]*"
    r"|(?P<text>[bB]?(?:[rR][bB]?"
    r"(?:\"{3}.*?\"{3}|'{3}.*?'{3}|\"[^\"]*\"|'[^']*')"
    r"|\"{3}(?:\\.|[^\\])*?\"{3}|'{3}(?:\\.|[^\\])*?'{3}"
    r"|\"(?:\\.|[^\\\"])*\"|'(?:\\.|[^\\'])*'))"
    r"|(?P<name>[A-Za-z_]\w*)"
    r"|\S",
    re.DOTALL,
)
_CHARACTER_CLASS = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)
_REGEX_PART = re.compile(r"\{(\d+)(?:,(\d*))?\}|.", re.DOTALL)

_MIN_INTEGER, _MAX_INTEGER = -(2**63), 2**64 - 1
_TOO_DEEP = f"expected at most {MAX_ARGUMENT_DEPTH} levels"

_decode_arguments = msgspec.json.Decoder(dict[str, Any]).decode
_encode = msgspec.json.Encoder().encode


# Arguments


class StrictArguments(NamedTuple):
    """Parsed arguments, how many values they contain at all levels, and their size as JSON."""

    members: dict[str, Any]
    value_count: int
    byte_count: int = 0

    def select(self, names: frozenset[str]) -> "StrictArguments":
        """Return only the members with these names."""
        members = {name: self.members[name] for name in names if name in self.members}
        return StrictArguments(members, _count_values(members)[0], len(_encode(members)))


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
    return StrictArguments(members, size, len(text))


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
        if size > MAX_ARGUMENT_VALUES:
            raise ValueError(f"expected at most {MAX_ARGUMENT_VALUES} values")
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


class TooExpensive(ConditionFailed):
    """A condition that is not evaluated, because these arguments could make it slow."""


class Cost(NamedTuple):
    """What decides how long a condition takes, read from its source."""

    operations: int
    """Function calls and operators that read all of their operands."""
    regex_states: int
    """The size of its regular expressions: for some texts, each character costs as many steps."""
    depth: int
    """How deep `all`, `exists`, `map` and `filter` are nested."""
    input_depth: int
    """How deep in them a variable such as `args` is read, again for each value."""
    compares: bool
    """Whether `contains` searches for a text that is not a literal: quadratic time."""
    collects: bool
    """Whether `map` or `filter` builds a list: quadratic time in its length."""
    literal_values: int
    """How many values its own lists and maps have: macros iterate over them as well."""
    members: frozenset[str] | None
    """The arguments that it reads; None if it could read any."""

    def estimate(self, size: int, values: int) -> int:
        """Return an upper bound of the work for inputs of `size` bytes with so many values.

        One unit takes up to 2 ns: docs/design/0017-policy.md has the measurements.
        """
        values += self.literal_values
        # Without `args` in the innermost body, one level of iteration reads each value once.
        times = min(_MAX_ITERATIONS, values ** max(self.input_depth, self.depth - 1, 0))
        iterations = min(_MAX_ITERATIONS, values**self.depth)
        read = times * size + (32 * iterations if self.depth else 64 * values)
        work = read * (self.operations + 4 * self.regex_states)
        if self.compares:
            work = max(work, size * size // 512 * self.operations)
        if self.collects:
            work = max(work, 4 * values * values * self.operations)
        return work


class Condition:
    """A compiled condition."""

    def __init__(self, source: str) -> None:
        """Compile the source; raises ConditionError or ConditionsUnavailable."""
        if len(source) > MAX_CONDITION_LENGTH:
            raise ConditionError(
                f"expected at most {MAX_CONDITION_LENGTH} characters, got {len(source)}"
            )
        self.source = source
        self.cost = _read_cost(source)
        self._expression = _compile(source, VARIABLES)
        kind = self._expression.return_type().name()
        if kind.lower() not in {"bool", "dyn"}:
            raise ConditionError(f"expected a boolean result, got {kind.lower()}")
        self.variables = frozenset(name for name in VARIABLES if _uses_variable(source, name))
        """The variables that it uses."""
        self._fact_names = tuple(sorted(self.variables - {"args"}))
        self._iterates = _ITERATION.search(source) is not None

    def holds(self, facts: Mapping[str, Any], arguments: StrictArguments = NO_ARGUMENTS) -> bool:
        """Evaluate the condition; raises ConditionFailed, or TooExpensive."""
        if self._iterates and arguments.value_count > MAX_ITERATED_VALUES:
            raise ConditionFailed(f"expected at most {MAX_ITERATED_VALUES} values")
        self._require_cheap(facts, arguments)
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

    def _require_cheap(self, facts: Mapping[str, Any], arguments: StrictArguments) -> None:
        size = values = 0
        for name in self._fact_names:
            fact = facts[name]
            size += len(fact) if isinstance(fact, str) else sum(map(len, fact))
            values += 1 if isinstance(fact, str) else len(fact)
        estimate, read = self.cost.estimate, arguments
        if estimate(size + read.byte_count, values + read.value_count) > MAX_WORK:
            if self.cost.members is not None:  # other arguments cost nothing: a file to write
                read = arguments.select(self.cost.members)
            if estimate(size + read.byte_count, values + read.value_count) > MAX_WORK:
                raise TooExpensive(
                    f"{read.byte_count} bytes with {read.value_count} values could take too long"
                )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Condition) and self.source == other.source

    def __hash__(self) -> int:
        return hash(self.source)


def _read_cost(source: str) -> Cost:
    """Return the cost of a condition; raises ConditionError for a computed regular expression."""
    tokens = [token for token in _TOKEN.finditer(source) if not token[0].startswith("//")]
    texts = ["", *(token[0] for token in tokens), "", "", ""]
    operations = states = depth = deepest = input_depth = 0
    compares = collects = False
    members: set[str] | None = set()
    opened: list[bool] = []  # for each open parenthesis, whether it belongs to a macro
    for at, token in enumerate(tokens, 1):
        before, text, after = texts[at - 1 : at + 2]
        if token["text"] is not None:
            continue
        if text == "(":
            opened.append(before in _MACROS and texts[at - 2] == ".")
            depth += opened[-1]
            deepest = max(deepest, depth)
        elif text == ")" and opened:
            depth -= opened.pop()
        elif text in _OPERATORS or text == "in":
            operations += 1
        elif token["name"] is not None and after == "(" and text not in _CHEAP_FUNCTIONS:
            operations += 1
            has_literal = tokens[at + 1 : at + 2] and tokens[at + 1]["text"] is not None
            has_literal = has_literal and texts[at + 3] == ")"
            if text == "matches" and not has_literal:
                raise _computed_regex_error(source, token.start())
            if text == "matches":
                states += _count_regex_states(texts[at + 2])
            compares = compares or (text == "contains" and not has_literal)
            collects = collects or text in _COLLECTORS
        elif text in VARIABLES and before != ".":
            input_depth = max(input_depth, depth)
            if text == "args" and members is not None:
                is_member = after == "." and texts[at + 3] != "("
                members = members | {texts[at + 2]} if is_member else None
    literals = _read_literals(tokens)
    if deepest:
        input_depth = max(input_depth, literals.input_depth)
    found = None if members is None else frozenset(members)
    return Cost(
        max(1, operations),
        states,
        deepest,
        input_depth,
        compares,
        collects,
        literals.value_count,
        found,
    )


class _Literals(NamedTuple):
    """The lists and maps that are written in a condition."""

    value_count: int
    input_depth: int
    """How often, as an exponent, a macro may read a variable that is a value of a literal."""


def _read_literals(tokens: list[re.Match[str]]) -> _Literals:
    value_count = input_depth = depth = 0
    before = ""
    ends_value = False  # whether the token before could end a value: then a bracket is an index
    opened: list[tuple[bool, bool]] = []  # for each bracket: is it that of a macro, of a literal?
    for token in tokens:
        text = token[0] if token["text"] is None else ""
        if text in ("(", "[", "{"):
            is_macro, is_literal = text == "(" and before in _MACROS, text != "(" and not ends_value
            opened.append((is_macro, is_literal))
            depth += is_macro
            value_count += is_literal
        elif text in (")", "]", "}") and opened:
            depth -= opened.pop()[0]
        elif text == ",":
            value_count += bool(opened) and opened[-1][1]
        elif text in VARIABLES and any(is_literal for _, is_literal in opened):
            input_depth = max(input_depth, depth + 1)
        before = text
        ends_value = text in ("", ")", "]", "}") or (token["name"] is not None and text != "in")
    return _Literals(value_count, input_depth)


def _computed_regex_error(source: str, at: int) -> ConditionError:
    line = source.count("\n", 0, at) + 1
    reason = "matches expects a literal text: callers must not choose a regular expression"
    return ConditionError(reason, line, at - source.rfind("\n", 0, at))


def _count_regex_states(literal: str) -> int:
    """Return about how many states a regular expression has; `x{100}` has 100."""
    pattern = _CHARACTER_CLASS.sub("x", literal)
    totals, last = [0], 0  # of the open groups, and of what a repetition would repeat
    for part in _REGEX_PART.finditer(pattern):
        if part[0] == "(":
            totals.append(0)
        elif part[0] == ")" and len(totals) > 1:
            last = totals.pop()
            totals[-1] += last
        elif part[1] is not None:
            more = last * (max(int(part[1]), int(part[2] or 0)) - 1)
            totals[-1] += max(0, more)
            last += max(0, more)
        else:
            last = 1
            totals[-1] += 1
    return sum(totals)


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
