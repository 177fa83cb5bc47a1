"""Where tables do not fit the types: every such place, not only the first.

msgspec stops at the first mismatch and knows no key of a dictionary; a person with three mistakes
wants to hear of three. This walks the types that msgspec read off the structs, and so knows of the
files what the JSON Schema knows. It converts nothing: `msgspec.convert` does, once all is well.

Rule upheld here: what passes without complaint is converted without one.
"""

import datetime
import re
from collections.abc import Mapping, Sized
from types import MappingProxyType
from typing import Any, NamedTuple, cast

import msgspec.inspect as kinds

from trunkline.documents.errors import Complain, meant, quoted
from trunkline.documents.lines import KeyPath

SURROGATE = re.compile(r"[\ud800-\udfff]")
"""Half a character: JSON can spell one, but nothing can be done with it."""


class _Found(NamedTuple):
    words: str
    remedy: str


_WORDS: dict[type, _Found] = {
    bool: _Found("true or false", "write one of the two, without quotes"),
    int: _Found("a whole number", "write digits alone"),
    float: _Found("a number", "write one, without quotes"),
    str: _Found("text", "put it in quotes"),
    list: _Found("a list", "put it in brackets: [ … ]"),
    dict: _Found("a table", "give it keys of its own"),
    type(None): _Found("null", "leave the key out"),
    datetime.datetime: _Found("a date", ""),
    datetime.date: _Found("a date", ""),
    datetime.time: _Found("a time", ""),
}
"""What a value is in words, and how to write one."""


def fit(value: object, kind: kinds.Type, path: KeyPath, complain: Complain) -> None:
    """Complain about every place in `value` that is not as `kind` wants it."""
    kind, words = _plain(kind)
    match kind:
        case kinds.StructType() | kinds.DictType():
            if _is(value, dict, path, complain):
                _fit_table(cast("dict[str, Any]", value), kind, path, complain)
        case kinds.VarTupleType():
            if "tables" in words and isinstance(value, dict):
                complain(path, "expected a list of tables", words["tables"])
            elif _is(value, list, path, complain):
                _fit_list(cast("list[Any]", value), kind, path, complain)
        case kinds.UnionType():
            fit(value, _meant(value, kind), path, complain)
        case kinds.LiteralType():
            _fit_choice(value, kind, path, complain)
        case kinds.StrType():
            _fit_text(value, kind, words, path, complain)
        case kinds.IntType() | kinds.FloatType():
            _fit_number(value, kind, path, complain)
        case _:
            _is(value, bool, path, complain)


def _meant(value: object, kind: kinds.UnionType) -> kinds.Type:
    """Return which of several types is meant: what has brackets is the list, or the table."""
    parts = {list: kinds.VarTupleType, dict: kinds.StructType}
    wanted = next((part for known, part in parts.items() if isinstance(value, known)), None)
    plain = next(each for each in kind.types if not isinstance(each, tuple(parts.values())))
    return next((each for each in kind.types if wanted and isinstance(each, wanted)), plain)


def _plain(kind: kinds.Type) -> tuple[kinds.Type, dict[str, str]]:
    """Return the type without None and without what is said about it; and that in our words."""
    words: dict[str, str] = {}
    while True:
        if isinstance(kind, kinds.Metadata):
            words |= cast("dict[str, str]", kind.extra or {})
            kind = kind.type
        elif isinstance(kind, kinds.UnionType):
            # Neither TOML nor a client's file says null: there, None is the absence of the key.
            choices = [each for each in kind.types if not isinstance(each, kinds.NoneType)]
            if len(choices) > 1:
                return kind, words
            kind = choices[0]
        else:
            return kind, words


def _is(value: object, wanted: type, path: KeyPath, complain: Complain) -> bool:
    # Not isinstance: True is an int to Python, but not to whoever writes a file.
    if type(value) is wanted:
        return True
    found = _WORDS[type(value)].words
    complain(path, f"expected {_WORDS[wanted].words}, got {found}", _WORDS[wanted].remedy)
    return False


def _fit_table(
    table: dict[str, Any],
    kind: kinds.StructType | kinds.DictType,
    path: KeyPath,
    complain: Complain,
) -> None:
    if isinstance(kind, kinds.DictType):
        _fit_count(table, kind, path, complain)
        for key, value in table.items():
            fit(key, kind.key_type, (*path, key), complain)
            fit(value, kind.value_type, (*path, key), complain)
        return
    fields = {field.encode_name: field.type for field in kind.fields}
    instead: Mapping[str, str] = getattr(kind.cls, "INSTEAD", {})
    strange = [key for key in table if key not in fields]
    for key, value in table.items():
        if key in fields:
            fit(value, fields[key], (*path, key), complain)
        else:
            complain((*path, key), "unknown key", remedy_for(key, fields, instead))
    for field in kind.fields:
        # Who misspelt a key hears of that; that it is missing would be the same thing again.
        name = field.encode_name
        if field.required and name not in table and not any(meant(k, [name]) for k in strange):
            complain(path, f"{quoted(name)} is missing", "add it")


def _fit_list(
    items: list[Any], kind: kinds.VarTupleType, path: KeyPath, complain: Complain
) -> None:
    _fit_count(items, kind, path, complain)
    for index, item in enumerate(items):
        fit(item, kind.item_type, (*path, index), complain)


def _fit_count(
    items: Sized, kind: kinds.VarTupleType | kinds.DictType, path: KeyPath, complain: Complain
) -> None:
    least, most, count = kind.min_length or 0, kind.max_length, len(items)
    if count < least or (most is not None and count > most):
        wanted = f"at least {least}" if count < least else f"at most {most}"
        if least == most:
            wanted = f"exactly {least}"
        fix = "add some" if count < least else "take some out"
        complain(path, f"expected {wanted}, got {count}", fix)


def remedy_for(
    key: str, known: Mapping[str, object], instead: Mapping[str, str] = MappingProxyType({})
) -> str:
    """Return what to do about an unknown key; `instead` is what its table says of some."""
    if key in instead:
        return instead[key]
    if (other := meant(key, known)) is not None:
        return f'did you mean "{other}"?'
    return f"known keys are {', '.join(known)}"


def _fit_text(
    value: object, kind: kinds.StrType, words: dict[str, str], path: KeyPath, complain: Complain
) -> None:
    if not _is(value, str, path, complain):
        return
    text = cast("str", value)
    is_short = kind.max_length is None or len(text) <= kind.max_length
    pattern = kind.pattern or words.get("pattern")
    # fullmatch, since "$" also matches before a newline at the end.
    if not is_short or (pattern and not re.fullmatch(pattern, text)):
        complain(path, f"expected {words.get('expected', '')}", "choose another")
    elif SURROGATE.search(text):
        complain(path, "half a character is in it", "take it out")


def _fit_choice(value: object, kind: kinds.LiteralType, path: KeyPath, complain: Complain) -> None:
    if value in kind.values:
        return
    choices = [str(choice) for choice in kind.values]
    *most, last = map(quoted, choices)
    other = meant(value, choices) if isinstance(value, str) else None
    fix = f'did you mean "{other}"?' if other else "choose one"
    complain(path, f"expected {', '.join(most)} or {last}", fix)


def _fit_number(
    value: object, kind: kinds.IntType | kinds.FloatType, path: KeyPath, complain: Complain
) -> None:
    wanted = int if isinstance(kind, kinds.IntType) else float
    if wanted is float and type(value) is int:
        value = min(max(value, -(2**53)), 2**53) * 1.0  # past these it is out of range anyway
    if not _is(value, wanted, path, complain):
        return
    number = cast("float", value)
    low, high = kind.ge if kind.gt is None else kind.gt, kind.le
    # Asked this way round, since every comparison with nan is false.
    above = low is None or (number > low if kind.gt is not None else number >= low)
    if not (above and (high is None or number <= high)):
        least = f"more than {low}" if kind.gt is not None else f"at least {low}"
        complain(path, f"expected {least} and at most {high}", "choose another")
