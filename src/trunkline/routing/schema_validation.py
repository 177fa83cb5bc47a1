"""Schema validation: checks arguments against the JSON Schema of a tool, at a bounded cost.

    schema ──list_subschemas──> its subschemas, if they are not too many and not too deep
           ──measure_cost──> checks per value, with references followed; recursion
    schema ──compile_schema──> None if it accepts everything · UncheckableSchema · ArgumentValidator
    arguments, as forwarded ──is_valid──> nearly always True ──find_errors──> () or what is wrong
                                                             ──find_name_errors──> also if lenient

A schema of one kilobyte can ask for a million checks of one value, by references that each lead to
two references. A schema that recurs in two places doubles its cost with each level of the value.
`SchemaCost.checks` bounds the number of checks for a value of some size and depth.

A lenient check is about the names of the arguments and not their values. It refuses a missing
required argument, and an unknown one if the schema allows no others. It reads `required` and
`additionalProperties: false` at the root, in `allOf`, and behind a `$ref` there. Servers often
accept values that their schema does not: `"1"` for a number, null for an absent argument.

Nothing is fetched: references to other documents, anchors and dynamic references make a schema
uncheckable. `format` is an annotation. This is the only module that knows the validation library.

Rules upheld here:
1. Measuring and checking take a bounded number of steps for every schema and all arguments. What
   could take more is uncheckable, and the caller decides what follows.
2. Regular expressions match in linear time. A pattern that cannot, or is too large, is left out,
   and the rest of the schema applies.
3. Error messages name places and expectations, never values.
4. A lenient check refuses only what a strict check refuses.
"""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, cast

import msgspec
from msgspec import Struct, field

from trunkline.jsonrpc import Raw, from_raw

if TYPE_CHECKING:
    from jsonschema_rs import ValidationError
    from jsonschema_rs import Validator as Compiled

Schema: TypeAlias = dict[str, Any]

ArgumentMode: TypeAlias = Literal["lenient", "strict", "off"]
"""How strictly arguments are checked."""

# The number of subschemas in one schema.
MAX_SUBSCHEMAS = 10_000

# The nesting depth of schemas, with references followed.
MAX_SCHEMA_DEPTH = 64

# The number of checks of a single value that a schema may ask for.
MAX_CHECKS_PER_VALUE = 5000

_SAME_VALUE_KEYWORDS = "not if then else allOf anyOf oneOf dependentSchemas dependencies"
_CHILD_VALUE_KEYWORDS = (
    "items prefixItems additionalItems unevaluatedItems contains additionalProperties "
    "unevaluatedProperties propertyNames properties patternProperties"
)
# Keywords that apply a schema to the same value (0), or to its children (1).
SCHEMA_KEYWORDS: Mapping[str, int] = {
    **dict.fromkeys(_SAME_VALUE_KEYWORDS.split(), 0),
    **dict.fromkeys(_CHILD_VALUE_KEYWORDS.split(), 1),
}

# Keywords that hold a table of schemas. Others hold one schema, or a list.
SCHEMA_TABLE_KEYWORDS = frozenset(
    ("properties", "patternProperties", "dependentSchemas", "dependencies", "$defs", "definitions")
)

_NESTING_KEYWORDS = {**SCHEMA_KEYWORDS, "$defs": 0, "definitions": 0}
_COMPARING_KEYWORDS = frozenset(("enum", "const", "required", "dependentRequired"))
# Keywords that need the results of the other schemas, and evaluate those again.
_REAPPLYING_KEYWORDS = frozenset(("unevaluatedItems", "unevaluatedProperties"))

# The checks that `uniqueItems` costs per value.
_UNIQUE_ITEMS_CHECKS = 32

# The checks that a comparison with an array or object costs.
_CONTAINER_CHECKS = 8

_ESCAPE = re.compile(rb"%([0-9A-Fa-f]{2})")

# The size limit of a schema, in bytes.
MAX_SCHEMA_BYTES = 128 * 1024

# The number of checks of the arguments of one call: some 15 ms.
MAX_CHECKS = 1_000_000

# The limit of argument bytes times regular expressions, at worst some 4 µs each.
MAX_PATTERN_BYTES = 8192

# Up to so many checks, all errors are collected: each may become a message of 30 µs.
MAX_EXPLAINED_CHECKS = 1000

MAX_REPORTED_ERRORS = 5
# The number of reported errors, and the length of each, in characters.
MAX_ERROR_LENGTH = 240

# The size limit of a compiled regular expression, in bytes.
MAX_REGEX_BYTES = 32 * 1024

# The number of regular expressions in a schema. Some take milliseconds to compile.
MAX_PATTERNS = 50

# The keywords that exclude nothing.
_ANNOTATION_KEYWORDS = frozenset(
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

_EMPTY_OBJECT = Raw(b"{}")
_decode_json = msgspec.json.Decoder().decode
_MAX_INTEGER_DIGITS = 4000
_TEXT_BYTES_PER_CHECK = 256
_ALTERNATIVE_KEYWORDS = ("anyOf", "oneOf")


class UncheckableSchema(ValueError):
    """A schema or a value that is not checked, with the reason."""


class SchemaCost(NamedTuple):
    """The cost of checking against a schema."""

    weight: int
    """Checks of one value, and of its content if it has one of everything."""
    patterns: int
    """Regular expressions among them, for values and for names."""
    alternatives: bool
    """Whether it has `anyOf` or `oneOf`, which collect the errors of every branch."""
    recursions: int = 0
    """The number of places where the schema recurs."""
    recursion_depth: int = 1
    """The minimal number of levels between two recursions."""

    def checks(self, values: int, depth: int) -> int:
        """Return the most checks that `values` values need, nested up to `depth` deep."""
        return self.weight * values * self.repeats(depth)

    def repeats(self, depth: int) -> int:
        """Return how often the whole schema is applied, at most, to a value at that depth."""
        rounds = depth // self.recursion_depth
        return (rounds + 1) * self.recursions**rounds if self.recursions else 1


# The cost of a schema


def list_subschemas(root: Schema) -> list[Schema]:
    """Return all subschemas of a schema; raises UncheckableSchema."""
    found: list[Schema] = []
    waiting: list[tuple[object, int]] = [(root, 0)]
    while waiting:
        node, depth = waiting.pop()
        if depth > MAX_SCHEMA_DEPTH:
            raise UncheckableSchema("its schema is nested too deeply")
        if not isinstance(node, dict):
            continue
        schema = cast("Schema", node)
        if len(found) >= MAX_SUBSCHEMAS:
            raise UncheckableSchema("its schema is too large")
        if found and isinstance(schema.get("$id"), str):
            raise UncheckableSchema("its schema contains a subschema with its own '$id'")
        found.append(schema)
        waiting += [(each, depth + 1) for each, _ in _subschemas(schema, _NESTING_KEYWORDS)]
    return found


def measure_cost(root: Schema) -> SchemaCost:
    """Return the cost of a schema; raises UncheckableSchema."""
    walk = _CostWalk(root)
    walk.apply(root, 0)
    return SchemaCost(
        walk.weight, walk.patterns, walk.alternatives, walk.recursions, walk.recursion_depth
    )


class _CostWalk(Struct):
    """Applies a schema to a value that has everything, and counts."""

    root: Schema
    weight: int = 0
    patterns: int = 0
    alternatives: bool = False
    recursions: int = 0
    recursion_depth: int = MAX_SCHEMA_DEPTH
    entered: dict[int, int] = field(default_factory=dict[int, int])
    """The schemas being applied, with their depth in the value."""

    def apply(self, node: object, depth: int) -> None:
        """Count what is applied to a value `depth` levels down."""
        self.weight += 1
        if not isinstance(node, dict):
            return
        schema = cast("Schema", node)
        if id(schema) in self.entered:
            self._record_recursion(depth - self.entered[id(schema)])
            return
        self._count_keywords(schema)
        if len(self.entered) > MAX_SCHEMA_DEPTH:
            raise UncheckableSchema("its schema refers to itself too deeply")
        self.entered[id(schema)] = depth
        for _ in range(1 if _REAPPLYING_KEYWORDS.isdisjoint(schema) else 2):
            if "$ref" in schema:
                self.apply(_resolve_reference(self.root, schema["$ref"]), depth)
            for each, levels in _subschemas(schema, SCHEMA_KEYWORDS):
                self.apply(each, depth + levels)
        del self.entered[id(schema)]

    def _record_recursion(self, levels: int) -> None:
        if levels == 0:
            raise UncheckableSchema("its schema refers to itself in a cycle")
        self.recursions += 1
        self.recursion_depth = min(self.recursion_depth, levels)

    def _count_keywords(self, schema: Schema) -> None:
        for key, value in schema.items():
            if key in _COMPARING_KEYWORDS:
                self.weight += _comparison_checks(value)
            elif key == "uniqueItems":
                self.weight += _UNIQUE_ITEMS_CHECKS
            elif key == "pattern":
                self.patterns += 1
            elif key == "patternProperties" and isinstance(value, dict):
                self.patterns += len(cast("Schema", value))
            elif key in {"anyOf", "oneOf"}:
                self.alternatives = True
            elif key in {"$dynamicRef", "$recursiveRef"}:
                raise UncheckableSchema("its schema has dynamic references")
        if self.weight > MAX_CHECKS_PER_VALUE:
            raise UncheckableSchema("its schema requires too many checks")


def read_reference(reference: object) -> tuple[str, ...]:
    """Return the steps of a reference within its document; raises UncheckableSchema for others."""
    if not isinstance(reference, str) or not (reference + "/").startswith("#/"):
        raise UncheckableSchema("its schema refers to another document, which is not fetched")
    pointer = _ESCAPE.sub(_unescape_byte, reference[1:].encode()).decode("utf-8", "replace")
    return tuple(step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:])


def _resolve_reference(root: Schema, reference: object) -> object:
    found: object = root
    for key in read_reference(reference):
        if isinstance(found, list) and key.isascii() and key.isdigit():
            items = cast("list[object]", found)
            found = items[int(key)] if int(key) < len(items) else None
        else:
            found = cast("Schema", found).get(key) if isinstance(found, dict) else None
    if not isinstance(found, dict | bool):
        raise UncheckableSchema("its schema has a broken reference")
    return cast("object", found)


def _unescape_byte(found: re.Match[bytes]) -> bytes:
    return bytes.fromhex(found[1].decode())


def _subschemas(schema: Schema, keys: Mapping[str, int]) -> Iterator[tuple[object, int]]:
    """Yield the schemas under some keywords, with the levels that they go down in a value."""
    for key, value in schema.items():
        levels = keys.get(key)
        if levels is None:
            continue
        if isinstance(value, list):
            parts = cast("list[object]", value)
        elif key in SCHEMA_TABLE_KEYWORDS:
            parts = cast("Schema", value).values() if isinstance(value, dict) else ()
        else:
            parts = (value,)
        for each in parts:
            yield each, levels


def _comparison_checks(value: object) -> int:
    """Return the number of checks that a comparison with a value costs."""
    count, waiting = 0, [value]
    while waiting:
        each = waiting.pop()
        parts: list[object] = []
        if isinstance(each, list):
            parts = cast("list[object]", each)
        elif isinstance(each, dict):
            parts = list(cast("Schema", each).values())
        count += _CONTAINER_CHECKS if parts else 1
        waiting += parts
    return count


# The names of the arguments


def names_schema(root: Schema) -> Schema:
    """Return the part of a checkable schema that requires and forbids members by their names."""
    parts: dict[int, Schema] = {}
    waiting: list[object] = [root]
    while waiting:
        node = waiting.pop()
        if not isinstance(node, dict) or id(cast("Schema", node)) in parts:
            continue
        schema = cast("Schema", node)
        part = parts[id(schema)] = {}
        if "$ref" in schema:
            waiting.append(_resolve_reference(root, schema["$ref"]))
            if ignores_reference_siblings(root):
                continue
        part |= {key: schema[key] for key in ("required",) if schema.get(key)}
        if schema.get("additionalProperties") is False:
            part["additionalProperties"] = False
            for key in ("properties", "patternProperties"):
                if schema.get(key):
                    part[key] = dict.fromkeys(schema[key], True)
        waiting += schema.get("allOf", ())
    found = [part for part in parts.values() if part]
    return {"allOf": found} if found else {}


def ignores_reference_siblings(root: Schema) -> bool:
    """Return whether the schema's draft ignores the keywords beside a `$ref`, as up to draft 7."""
    return "/draft-0" in str(root.get("$schema"))


# Validation


def is_trivial(schema: Schema) -> bool:
    """Return whether a schema accepts every object."""
    return all(
        key in _ANNOTATION_KEYWORDS
        or (key == "type" and value == "object")
        or (key == "additionalProperties" and value in (True, {}))
        or (key in {"properties", "required", "patternProperties"} and not value)
        for key, value in schema.items()
    )


def compile_schema(raw: Raw) -> "ArgumentValidator | None":
    """Return a validator, or None if the schema accepts everything; raises UncheckableSchema."""
    if len(raw) > MAX_SCHEMA_BYTES:
        raise UncheckableSchema(f"its schema is longer than {MAX_SCHEMA_BYTES} bytes")
    try:
        schema = from_raw(raw)
    except ValueError:
        raise UncheckableSchema("its schema cannot be read") from None
    if not isinstance(schema, dict):
        raise UncheckableSchema("its schema is not an object")
    tree = cast("Schema", schema)
    return None if is_trivial(tree) else ArgumentValidator(tree)


class ArgumentValidator:
    """Checks the arguments of one tool."""

    def __init__(self, tree: Schema) -> None:
        """Compile a schema, and modify it; raises UncheckableSchema."""
        subschemas = list_subschemas(tree)
        if sum(map(_count_patterns, subschemas)) > MAX_PATTERNS:
            raise UncheckableSchema("its schema has too many regular expressions")
        for subschema in subschemas:
            if "pattern" in subschema and not _is_linear(subschema["pattern"]):
                del subschema["pattern"]
        self._cost = measure_cost(tree)
        self._compiled = _compile(tree)
        self._names_schema = names_schema(tree)
        self._names_validator: ArgumentValidator | None = None
        self._compiled_is_valid = self._compiled.is_valid
        self._patternless_cost, self._patternless = self._cost, self._compiled
        if self._cost.patterns:
            for subschema in subschemas:
                subschema.pop("pattern", None)
            # For arguments that are too long to match: the schema without its patterns.
            self._patternless_cost, self._patternless = measure_cost(tree), _compile(tree)
        max_pattern_bytes = MAX_PATTERN_BYTES // (self._cost.patterns or 1)
        # Arguments up to this size are checked without an estimate of the cost.
        self._max_quick_bytes = min(MAX_CHECKS // self._cost.weight, max_pattern_bytes)
        if self._cost.recursions:
            self._max_quick_bytes = 0

    def is_valid(self, arguments: Raw) -> bool:
        """Return whether arguments are valid. After False, `find_errors` decides."""
        try:
            is_small = len(arguments) <= self._max_quick_bytes
            return is_small and self._compiled_is_valid(_decode_json(arguments))
        except (ValueError, RecursionError):
            return False

    def find_errors(self, arguments: Raw | None) -> tuple[str, ...]:
        """Return the errors in arguments, if there are any; raises UncheckableSchema."""
        raw = _EMPTY_OBJECT if arguments is None else arguments
        try:
            value, digits = _decode_json(raw), 0
        except (ValueError, RecursionError):
            value, digits = _read_exactly(raw)
        if len(raw) <= self._max_quick_bytes:
            if self._compiled_is_valid(value):
                return ()
            return self._explain(value, _estimate_values(raw) + digits, self._cost)
        return self._find_errors_in_large(raw, value, digits)

    def find_name_errors(self, arguments: Raw | None) -> tuple[str, ...]:
        """Return the missing and forbidden names in arguments; raises UncheckableSchema."""
        if self._names_validator is None:  # few schemas ever see invalid arguments
            self._names_validator = ArgumentValidator(self._names_schema)
        return self._names_validator.find_errors(arguments)

    def _find_errors_in_large(self, raw: Raw, value: object, digits: int) -> tuple[str, ...]:
        """Return the errors in arguments whose check might cost too much."""
        cost, compiled, size = self._cost, self._compiled, len(raw)
        depth = _nesting_depth(value) if cost.recursions else 0
        if cost.patterns * size * cost.repeats(depth) > MAX_PATTERN_BYTES:
            cost, compiled = self._patternless_cost, self._patternless
            if cost.patterns * size * cost.repeats(depth) > MAX_PATTERN_BYTES:
                raise UncheckableSchema("its arguments are too long for regular expressions")
        count = _estimate_values(raw) + digits
        if cost.checks(count, depth) > MAX_CHECKS:
            raise UncheckableSchema("its arguments would take too many checks")
        return () if compiled.is_valid(value) else self._explain(value, count, cost)

    def _explain(self, value: object, count: int, cost: SchemaCost) -> tuple[str, ...]:
        """Describe the errors in invalid arguments, as far as the cost allows."""
        compiled = self._compiled if cost is self._cost else self._patternless
        depth = _nesting_depth(value) if cost.recursions else 0
        errors: list[ValidationError] = []
        with suppress(ValueError):  # raised for numbers with more digits than Python converts
            if cost.checks(count, depth) <= MAX_EXPLAINED_CHECKS:
                errors = list(compiled.iter_errors(value))
            elif not cost.alternatives:
                errors = [error] if (error := _first_error(compiled, value)) is not None else []
        if not errors:
            return ("they do not match its schema",)
        messages = tuple(dict.fromkeys(map(_describe_error, errors)))
        if len(messages) > MAX_REPORTED_ERRORS:
            omitted = len(messages) - MAX_REPORTED_ERRORS + 1
            messages = (*messages[: MAX_REPORTED_ERRORS - 1], f"and {omitted} more")
        return messages


def _count_patterns(subschema: Schema) -> int:
    named = subschema.get("patternProperties")
    return ("pattern" in subschema) + (len(cast("Schema", named)) if isinstance(named, dict) else 0)


def _compile(tree: Schema) -> "Compiled":
    import jsonschema_rs  # noqa: PLC0415  imported late: it takes some 25 ms

    try:
        return jsonschema_rs.validator_for(
            tree,
            validate_formats=False,
            offline=True,
            mask="value",
            pattern_options=jsonschema_rs.RegexOptions(MAX_REGEX_BYTES, MAX_REGEX_BYTES),
        )
    except ValueError as error:
        reason = str(getattr(error, "message", error))
        raise UncheckableSchema(f"its schema is invalid: {_shorten(reason)}") from None


def _is_linear(pattern: object) -> bool:
    try:
        _compile({"pattern": pattern})
    except UncheckableSchema:
        return False
    return True


def _first_error(compiled: "Compiled", value: object) -> "ValidationError | None":
    import jsonschema_rs  # noqa: PLC0415  as above

    try:
        compiled.validate(value)
    except jsonschema_rs.ValidationError as error:
        return error
    return None


def _read_exactly(raw: Raw) -> tuple[object, int]:
    """Parse arguments with exact numbers, even those that no float can hold.

    Also return the total number of digits, because a comparison reads all of them.
    """
    lengths: list[int] = []

    def read_decimal(digits: str) -> Decimal:
        lengths.append(len(digits))
        return Decimal(digits)

    def read_integer(digits: str) -> int | Decimal:
        return int(digits) if len(digits) < _MAX_INTEGER_DIGITS else read_decimal(digits)

    try:
        value = json.loads(bytes(raw), parse_float=read_decimal, parse_int=read_integer)
        json.dumps(value, ensure_ascii=False, default=str).encode()  # rejects surrogates
        return value, sum(lengths)
    except (ValueError, ArithmeticError, RecursionError):
        raise UncheckableSchema("its arguments cannot be read") from None


def _estimate_values(raw: Raw) -> int:
    """Return an upper bound of the number of values in JSON. Long text counts as several."""
    text = bytes(raw)
    return 1 + len(text) // _TEXT_BYTES_PER_CHECK + sum(map(text.count, (b",", b"{", b"[")))


def _nesting_depth(value: object) -> int:
    deepest, waiting = 0, [(value, 0)]
    while waiting:
        each, depth = waiting.pop()
        deepest = max(deepest, depth)
        if isinstance(each, dict):
            waiting += [(item, depth + 1) for item in cast("Schema", each).values()]
        elif isinstance(each, list):
            waiting += [(item, depth + 1) for item in cast("list[object]", each)]
    return deepest


def _describe_error(error: "ValidationError") -> str:
    return _shorten(_with_path(error.instance_path, _error_message(error)))


def _error_message(error: "ValidationError") -> str:
    if error.kind.name == "falseSchema":
        return "value is not allowed" if error.instance_path else "no arguments are allowed"
    context: list[list[ValidationError]] = getattr(error.kind, "context", [])
    is_alternative = error.kind.name in _ALTERNATIVE_KEYWORDS
    if not is_alternative or not 0 < len(context) <= 3 or not all(context):
        return error.message
    below = len(error.instance_path)
    return ", and ".join(
        _with_path(branch[0].instance_path[below:], branch[0].message) for branch in context
    )


def _with_path(path: list[str | int], message: str) -> str:
    place = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return f"{place.removeprefix('.')}: {message}" if place else message


def _shorten(message: str) -> str:
    return message if len(message) <= MAX_ERROR_LENGTH else message[: MAX_ERROR_LENGTH - 1] + "…"
