"""Validation: whether arguments fit the JSON Schema of a tool, and what is wrong if they do not.

    schema ──> trivial? nothing to do · too costly? Uncheckable · else a Validator, compiled once
    arguments, as they are forwarded ──> Validator.fits ──> as most do
                                     ──> Validator.complaints ──> () or what is wrong, and where

Refuses to fetch anything: a reference to another document makes a schema uncheckable. `format` is a
remark, not a rule. The only file that knows the library.

Rules upheld here:
1. Checking takes a bounded number of steps, whatever the schema and whatever the arguments: what
   could take more is Uncheckable, and whoever is asked then decides.
2. Regular expressions are matched in linear time; one that cannot be, or is too large, is left out,
   and the rest of the schema holds.
3. What is said about arguments names places and what was expected, never a value.
"""

import json
from contextlib import suppress
from decimal import Decimal
from typing import TYPE_CHECKING, cast

import msgspec

from trunkline.jsonrpc import Raw, from_raw
from trunkline.routing.schema_cost import Cost, Schema, Uncheckable, cost_of, survey

if TYPE_CHECKING:
    from jsonschema_rs import ValidationError
    from jsonschema_rs import Validator as Compiled

MAX_SCHEMA = 128 * 1024
"""How long a schema may be, in bytes."""

MAX_CHECKS = 1_000_000
"""How many checks the arguments of one call may take: some 15 ms."""

MAX_MATCHED = 8192
"""How many bytes times regular expressions may be matched: at worst some 4 µs each."""

MAX_EXPLAINED = 1000
"""Up to how many checks all that is wrong is asked for: each may become a complaint of 30 µs."""

MAX_COMPLAINTS = 5
MAX_WORDS = 240
"""How many complaints are made, and how long each may be, in characters."""

MAX_REGEX = 32 * 1024
"""How large a regular expression may become, in bytes."""

MAX_PATTERNS = 50
"""How many of them a schema may have: some take milliseconds to compile."""

_REMARKS = frozenset(
    (
        "$schema",
        "$id",
        "$comment",
        "$defs",
        "definitions",
        "title",
        "description",
        "default",
        "examples",
        "deprecated",
        "readOnly",
        "writeOnly",
        "format",
    )
)
"""The keywords that rule nothing out."""

_EMPTY = Raw(b"{}")
_decode = msgspec.json.Decoder().decode
_LONGEST_INTEGER = 4000
_LONG = 256
_ALTERNATIVES = ("anyOf", "oneOf")


def is_trivial(schema: Schema) -> bool:
    """Tell whether a schema rules out nothing that is an object."""
    return all(
        key in _REMARKS
        or (key == "type" and value == "object")
        or (key == "additionalProperties" and value in (True, {}))
        or (key in {"properties", "required", "patternProperties"} and not value)
        for key, value in schema.items()
    )


def compile_schema(raw: Raw) -> "Validator | None":
    """Return what checks against a schema, None if nothing can be wrong; raises Uncheckable."""
    if len(raw) > MAX_SCHEMA:
        raise Uncheckable(f"its schema is longer than {MAX_SCHEMA} bytes")
    try:
        schema = from_raw(raw)
    except ValueError:
        raise Uncheckable("its schema cannot be read") from None
    if not isinstance(schema, dict):
        raise Uncheckable("its schema is not an object")
    tree = cast("Schema", schema)
    return None if is_trivial(tree) else Validator(tree)


class Validator:
    """Checks the arguments of one tool."""

    def __init__(self, tree: Schema) -> None:
        """Compile a schema, which is changed by that; raises Uncheckable."""
        places = survey(tree)
        if sum(map(_patterns, places)) > MAX_PATTERNS:
            raise Uncheckable("its schema has too many regular expressions")
        for place in places:
            if "pattern" in place and not _is_linear(place["pattern"]):
                del place["pattern"]
        self._cost = cost_of(tree)
        self._compiled = _compile(tree)
        self._is_valid = self._compiled.is_valid
        self._light_cost, self._light = self._cost, self._compiled
        if self._cost.patterns:
            for place in places:
                place.pop("pattern", None)
            # For long arguments, which would take too long to match.
            self._light_cost, self._light = cost_of(tree), _compile(tree)
        matched = MAX_MATCHED // (self._cost.patterns or 1)
        self._short = 0 if self._cost.loops else min(MAX_CHECKS // self._cost.weight, matched)
        """Arguments of so many bytes can be checked without a second thought."""

    def fits(self, arguments: Raw) -> bool:
        """Tell whether arguments fit; if that takes a closer look, it is left to `complaints`."""
        try:
            return len(arguments) <= self._short and self._is_valid(_decode(arguments))
        except (ValueError, RecursionError):
            return False

    def complaints(self, arguments: Raw | None) -> tuple[str, ...]:
        """Return what is wrong with arguments, if anything is; raises Uncheckable."""
        raw = _EMPTY if arguments is None else arguments
        try:
            value, digits = _decode(raw), 0
        except (ValueError, RecursionError):
            value, digits = _read_exactly(raw)
        if len(raw) <= self._short:
            if self._is_valid(value):
                return ()
            return self._explain(value, _count(raw) + digits, self._cost)
        return self._complaints_of_many(raw, value, digits)

    def _complaints_of_many(self, raw: Raw, value: object, digits: int) -> tuple[str, ...]:
        """Do the same for arguments that may take too many checks."""
        cost, compiled, size = self._cost, self._compiled, len(raw)
        depth = _depth(value) if cost.loops else 0
        if cost.patterns * size * cost.repeats(depth) > MAX_MATCHED:
            cost, compiled = self._light_cost, self._light
            if cost.patterns * size * cost.repeats(depth) > MAX_MATCHED:
                raise Uncheckable("its arguments are too long for regular expressions")
        count = _count(raw) + digits
        if cost.checks(count, depth) > MAX_CHECKS:
            raise Uncheckable("its arguments would take too many checks")
        return () if compiled.is_valid(value) else self._explain(value, count, cost)

    def _explain(self, value: object, count: int, cost: Cost) -> tuple[str, ...]:
        """Say what is wrong with arguments that do not fit, as far as that can be said quickly."""
        compiled = self._compiled if cost is self._cost else self._light
        depth = _depth(value) if cost.loops else 0
        errors: list[ValidationError] = []
        with suppress(ValueError):  # of a number with more digits than Python reads back
            if cost.checks(count, depth) <= MAX_EXPLAINED:
                errors = list(compiled.iter_errors(value))
            elif not cost.alternatives:
                errors = [error] if (error := _first(compiled, value)) is not None else []
        if not errors:
            return ("they do not fit its schema",)
        said = tuple(dict.fromkeys(map(_sentence, errors)))
        if len(said) > MAX_COMPLAINTS:
            more = len(said) - MAX_COMPLAINTS + 1
            said = (*said[: MAX_COMPLAINTS - 1], f"and {more} more")
        return said


def _patterns(place: Schema) -> int:
    named = place.get("patternProperties")
    return ("pattern" in place) + (len(cast("Schema", named)) if isinstance(named, dict) else 0)


def _compile(tree: Schema) -> "Compiled":
    import jsonschema_rs  # noqa: PLC0415  some 25 ms that only those wait for who need it

    try:
        return jsonschema_rs.validator_for(
            tree,
            validate_formats=False,
            offline=True,
            mask="value",
            pattern_options=jsonschema_rs.RegexOptions(MAX_REGEX, MAX_REGEX),
        )
    except ValueError as why:
        reason = str(getattr(why, "message", why))
        raise Uncheckable(f"its schema is none: {_cut(reason)}") from None


def _is_linear(pattern: object) -> bool:
    try:
        _compile({"pattern": pattern})
    except Uncheckable:
        return False
    return True


def _first(compiled: "Compiled", value: object) -> "ValidationError | None":
    import jsonschema_rs  # noqa: PLC0415  see above

    try:
        compiled.validate(value)
    except jsonschema_rs.ValidationError as error:
        return error
    return None


def _read_exactly(raw: Raw) -> tuple[object, int]:
    """Return arguments as they are, every number exactly: one that no float holds, perhaps.

    Beside them, how many digits their numbers have: whoever compares one looks at all of its own.
    """
    lengths: list[int] = []

    def read(written: str) -> Decimal:
        lengths.append(len(written))
        return Decimal(written)

    def read_whole(written: str) -> int | Decimal:
        return int(written) if len(written) < _LONGEST_INTEGER else read(written)

    try:
        value = json.loads(bytes(raw), parse_float=read, parse_int=read_whole)
        json.dumps(value, ensure_ascii=False, default=str).encode()  # or half a character
        return value, sum(lengths)
    except (ValueError, ArithmeticError, RecursionError):
        raise Uncheckable("its arguments cannot be read") from None


def _count(raw: Raw) -> int:
    """Return how many values there are at most in some JSON; a long text counts for several."""
    written = bytes(raw)
    return 1 + len(written) // _LONG + sum(map(written.count, (b",", b"{", b"[")))


def _depth(value: object) -> int:
    """Return how deeply a value is nested."""
    deepest, waiting = 0, [(value, 0)]
    while waiting:
        each, depth = waiting.pop()
        deepest = max(deepest, depth)
        if isinstance(each, dict):
            waiting += [(item, depth + 1) for item in cast("Schema", each).values()]
        elif isinstance(each, list):
            waiting += [(item, depth + 1) for item in cast("list[object]", each)]
    return deepest


def _sentence(error: "ValidationError") -> str:
    """Say in one line what is wrong, and where."""
    return _cut(_placed(error.instance_path, _words(error)))


def _words(error: "ValidationError") -> str:
    if error.kind.name == "falseSchema":
        return "value is not allowed" if error.instance_path else "no arguments are allowed"
    context: list[list[ValidationError]] = getattr(error.kind, "context", [])
    if error.kind.name not in _ALTERNATIVES or not 0 < len(context) <= 3 or not all(context):
        return error.message
    below = len(error.instance_path)
    return ", and ".join(
        _placed(branch[0].instance_path[below:], branch[0].message) for branch in context
    )


def _placed(path: list[str | int], words: str) -> str:
    place = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return f"{place.removeprefix('.')}: {words}" if place else words


def _cut(words: str) -> str:
    return words if len(words) <= MAX_WORDS else words[: MAX_WORDS - 1] + "…"
