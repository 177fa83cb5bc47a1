"""Validate tables against types: report every mismatch, not only the first.

msgspec stops at the first mismatch and does not name keys of dictionaries, but a user with three
mistakes needs three messages. This module walks the types that msgspec inspected, so it accepts
the same files as their JSON Schema. It converts nothing: `msgspec.convert` does, afterwards.

Invariant upheld here: a table without errors is converted without errors.
"""

import datetime
import re
from collections.abc import Mapping, Sized
from types import MappingProxyType
from typing import Any, NamedTuple, cast

from msgspec import inspect

from trunkline.documents.errors import AddError, KeyPath, closest_match, quote

# Half of a surrogate pair. JSON can escape one, but no encoding can write it.
LONE_SURROGATE = re.compile(r"[\ud800-\udfff]")


class _ValueWords(NamedTuple):
    description: str
    fix: str


# How messages name the type of a value, and how to write such a value.
_VALUE_WORDS: dict[type, _ValueWords] = {
    bool: _ValueWords("true or false", "write one of the two, without quotes"),
    int: _ValueWords("a whole number", "write digits alone"),
    float: _ValueWords("a number", "write one, without quotes"),
    str: _ValueWords("text", "put it in quotes"),
    list: _ValueWords("a list", "put it in brackets: [ … ]"),
    dict: _ValueWords("a table", "give it keys of its own"),
    type(None): _ValueWords("null", "leave the key out"),
    datetime.datetime: _ValueWords("a date", ""),
    datetime.date: _ValueWords("a date", ""),
    datetime.time: _ValueWords("a time", ""),
}


def validate(value: object, kind: inspect.Type, path: KeyPath, add_error: AddError) -> None:
    """Add an error for every place in `value` that does not fit `kind`."""
    kind, words = _unwrap_type(kind)
    match kind:
        case inspect.StructType() | inspect.DictType():
            if _check_type(value, dict, path, add_error):
                _validate_table(cast("dict[str, Any]", value), kind, path, add_error)
        case inspect.VarTupleType():
            if "tables" in words and isinstance(value, dict):
                add_error(path, "expected a list of tables", words["tables"])
            elif _check_type(value, list, path, add_error):
                _validate_list(cast("list[Any]", value), kind, path, add_error)
        case inspect.UnionType():
            validate(value, _choose_union_member(value, kind), path, add_error)
        case inspect.LiteralType():
            _validate_choice(value, kind, path, add_error)
        case inspect.StrType():
            _validate_text(value, kind, words, path, add_error)
        case inspect.IntType() | inspect.FloatType():
            _validate_number(value, kind, path, add_error)
        case _:
            _check_type(value, bool, path, add_error)


def suggest_key(
    key: str,
    known_keys: Mapping[str, object],
    replacements: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """Return the fix for an unknown key; `replacements` has the fixes for some of them."""
    if key in replacements:
        return replacements[key]
    if (closest := closest_match(key, known_keys)) is not None:
        return f'did you mean "{closest}"?'
    return f"known keys are {', '.join(known_keys)}"


def drop_null(definition: dict[str, Any]) -> dict[str, Any]:
    """Remove null from a JSON Schema of msgspec's.

    TOML has no null. Where a type here says None, the key is absent from the file.
    """
    properties: dict[str, dict[str, Any]] = definition["properties"]
    for each in properties.values():
        if each.get("default", "") is None:
            del each["default"]
        choices = [choice for choice in each.pop("anyOf", ()) if choice != {"type": "null"}]
        if len(choices) > 1:
            each["anyOf"] = choices
        for choice in choices[:1] if "anyOf" not in each else ():
            each.update(choice)
        if "enum" in each:
            each["enum"] = [choice for choice in each["enum"] if choice is not None]
    return definition


def _choose_union_member(value: object, kind: inspect.UnionType) -> inspect.Type:
    """Return the type of the union that fits the value's brackets: list, table, or neither."""
    parts = {list: inspect.VarTupleType, dict: inspect.StructType}
    expected = next((part for known, part in parts.items() if isinstance(value, known)), None)
    plain = next(each for each in kind.types if not isinstance(each, tuple(parts.values())))
    return next((each for each in kind.types if expected and isinstance(each, expected)), plain)


def _unwrap_type(kind: inspect.Type) -> tuple[inspect.Type, dict[str, str]]:
    """Return the type without None and metadata, and the words of the metadata."""
    words: dict[str, str] = {}
    while True:
        if isinstance(kind, inspect.Metadata):
            words |= cast("dict[str, str]", kind.extra or {})
            kind = kind.type
        elif isinstance(kind, inspect.UnionType):
            # TOML has no null, and files of clients do not use it: None stands for an absent key.
            choices = [each for each in kind.types if not isinstance(each, inspect.NoneType)]
            if len(choices) > 1:
                return kind, words
            kind = choices[0]
        else:
            return kind, words


def _check_type(value: object, expected: type, path: KeyPath, add_error: AddError) -> bool:
    # Not isinstance: Python counts True as an int, but people who write files do not.
    if type(value) is expected:
        return True
    got = _VALUE_WORDS[type(value)].description
    wanted = _VALUE_WORDS[expected]
    add_error(path, f"expected {wanted.description}, got {got}", wanted.fix)
    return False


def _validate_table(
    table: dict[str, Any],
    kind: inspect.StructType | inspect.DictType,
    path: KeyPath,
    add_error: AddError,
) -> None:
    if isinstance(kind, inspect.DictType):
        _validate_count(table, kind, path, add_error)
        for key, value in table.items():
            validate(key, kind.key_type, (*path, key), add_error)
            validate(value, kind.value_type, (*path, key), add_error)
        return
    fields = {field.encode_name: field.type for field in kind.fields}
    replacements: Mapping[str, str] = getattr(kind.cls, "KEY_FIXES", {})
    unknown_keys = [key for key in table if key not in fields]
    for key, value in table.items():
        if key in fields:
            validate(value, fields[key], (*path, key), add_error)
        else:
            fix = suggest_key(key, fields, replacements)
            add_error((*path, key), "unknown key", fix)
    for field in kind.fields:
        # A misspelled key has its own error; reporting it as missing too would repeat that.
        name = field.encode_name
        is_misspelled = any(closest_match(key, [name]) for key in unknown_keys)
        if field.required and name not in table and not is_misspelled:
            add_error(path, f"{quote(name)} is missing", "add it")


def _validate_list(
    items: list[Any], kind: inspect.VarTupleType, path: KeyPath, add_error: AddError
) -> None:
    _validate_count(items, kind, path, add_error)
    for index, item in enumerate(items):
        validate(item, kind.item_type, (*path, index), add_error)


def _validate_count(
    items: Sized, kind: inspect.VarTupleType | inspect.DictType, path: KeyPath, add_error: AddError
) -> None:
    minimum, maximum, count = kind.min_length or 0, kind.max_length, len(items)
    if count < minimum or (maximum is not None and count > maximum):
        expected = f"at least {minimum}" if count < minimum else f"at most {maximum}"
        if minimum == maximum:
            expected = f"exactly {minimum}"
        fix = "add some" if count < minimum else "take some out"
        add_error(path, f"expected {expected}, got {count}", fix)


def _validate_text(
    value: object, kind: inspect.StrType, words: dict[str, str], path: KeyPath, add_error: AddError
) -> None:
    if not _check_type(value, str, path, add_error):
        return
    text = cast("str", value)
    is_short = kind.max_length is None or len(text) <= kind.max_length
    pattern = kind.pattern or words.get("pattern")
    # fullmatch: "$" also matches before a newline at the end.
    if not is_short or (pattern and not re.fullmatch(pattern, text)):
        add_error(path, f"expected {words.get('expected', '')}", "choose another")
    elif LONE_SURROGATE.search(text):
        add_error(path, "it contains half of a surrogate pair", "remove that character")


def _validate_choice(
    value: object, kind: inspect.LiteralType, path: KeyPath, add_error: AddError
) -> None:
    if value in kind.values:
        return
    choices = [str(choice) for choice in kind.values]
    *others, last = map(quote, choices)
    closest = closest_match(value, choices) if isinstance(value, str) else None
    fix = f'did you mean "{closest}"?' if closest else "choose one"
    add_error(path, f"expected {', '.join(others)} or {last}", fix)


def _validate_number(
    value: object, kind: inspect.IntType | inspect.FloatType, path: KeyPath, add_error: AddError
) -> None:
    expected = int if isinstance(kind, inspect.IntType) else float
    if expected is float and type(value) is int:
        # Clamped: a float cannot hold a huge integer, and beyond 2**53 it is out of range anyway.
        value = min(max(value, -(2**53)), 2**53) * 1.0
    if not _check_type(value, expected, path, add_error):
        return
    number = cast("float", value)
    low, high = kind.ge if kind.gt is None else kind.gt, kind.le
    # Each comparison must be true, so that NaN fails: all its comparisons are false.
    is_above = low is None or (number > low if kind.gt is not None else number >= low)
    if not (is_above and (high is None or number <= high)):
        lower_bound = f"more than {low}" if kind.gt is not None else f"at least {low}"
        add_error(path, f"expected {lower_bound} and at most {high}", "choose another")
