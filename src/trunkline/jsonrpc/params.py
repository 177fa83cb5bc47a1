"""Params: from raw JSON to the arguments of a Python function, checked against its annotations.

    def add(a: int, b: int = 0)      [1, 2]        ──> add(1, 2)
                                     {"a": 1}      ──> add(a=1)
                                     {"a": "one"}  ──> Invalid params: expected `int`, got `str` …

Refuses to guess: too many, too few, unknown and wrong ones are refused before the call, and the
reason names places and types, never a value. Only functions with `*args` or `**kwargs` get values
as JSON has them.
"""

from collections.abc import Callable
from inspect import Parameter, Signature, signature
from typing import Any, TypeAlias, Union

import msgspec
from msgspec import defstruct
from msgspec.structs import asdict, astuple

from trunkline.jsonrpc.errors import LocalProtocolError, RpcError
from trunkline.jsonrpc.raw import UNSET, Raw, UnsetType, first_byte

Arguments: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]
Bind: TypeAlias = Callable[[Raw], Arguments]

_NONE: Raw = Raw(b"{}")
_NO_NAMES: dict[str, Any] = {}
_ARRAY = ord("[")

_PLAIN = Parameter.POSITIONAL_OR_KEYWORD
_VARIABLE = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


def binder(function: Callable[..., Any]) -> Callable[[Raw | UnsetType], Arguments]:
    """Return what turns params into arguments of `function`, or raises Invalid params."""
    try:
        bind = _strategy(signature(function, eval_str=True))
    except (TypeError, NameError) as why:  # an annotation that msgspec or Python cannot resolve
        raise LocalProtocolError(f"cannot read params for {function!r}: {why}") from why

    def arguments(params: Raw | UnsetType) -> Arguments:
        try:
            return bind(_NONE if params is UNSET else params)
        except (msgspec.ValidationError, TypeError) as why:
            raise RpcError.invalid_params(_reason(str(why))) from None
        except RecursionError:
            raise RpcError.invalid_params("nested too deeply") from None

    return arguments


def _strategy(shape: Signature) -> Bind:
    parameters = list(shape.parameters.values())
    if any(p.kind in _VARIABLE for p in parameters):
        return _loose(shape)
    if all(p.kind is _PLAIN and p.default is Parameter.empty for p in parameters):
        return _strict(parameters)
    return _with_defaults(parameters)


def _strict(parameters: list[Parameter]) -> Bind:
    """Read all params, by position or by name, in one pass: what most functions need."""
    fields = _fields(parameters)
    named = defstruct("Params", fields, forbid_unknown_fields=True)
    # No Python type says "one of these", so the checker has to take it on trust.
    row: Any = tuple[tuple(kind for _, kind, *_ in fields)] if fields else tuple[()]
    read: Callable[[Raw], Any] = msgspec.json.Decoder(Union[named, row]).decode

    def bind(params: Raw) -> Arguments:
        found = read(params)
        # By type, and not with isinstance: the checker would narrow the unknown to more unknowns.
        return (astuple(found) if type(found) is named else found), _NO_NAMES

    return bind


def _with_defaults(parameters: list[Parameter]) -> Bind:
    """Read the params that are there; Python itself fills in the others."""
    by_position = [p for p in parameters if p.kind is not Parameter.KEYWORD_ONLY]
    by_name = [p for p in parameters if p.kind is not Parameter.POSITIONAL_ONLY]
    read_row = msgspec.json.Decoder(
        defstruct("Params", _fields(by_position), array_like=True, forbid_unknown_fields=True)
    ).decode
    read_named = msgspec.json.Decoder(
        defstruct("Params", _fields(by_name), forbid_unknown_fields=True, kw_only=True)
    ).decode
    needs_names = _required(parameters, Parameter.KEYWORD_ONLY)
    needs_row = _required(parameters, Parameter.POSITIONAL_ONLY)

    def bind(params: Raw) -> Arguments:
        if first_byte(params) == _ARRAY:
            if needs_names:
                raise TypeError(f"missing {needs_names[0]!r}, which can only be given by name")
            values = astuple(read_row(params))
            return tuple(value for value in values if value is not UNSET), _NO_NAMES
        if needs_row:
            raise TypeError(f"missing {needs_row[0]!r}, which can only be given by position")
        given = asdict(read_named(params))
        return (), {name: value for name, value in given.items() if value is not UNSET}

    return bind


def _loose(shape: Signature) -> Bind:
    """Let Python itself decide what fits a function that takes whatever comes."""

    def bind(params: Raw) -> Arguments:
        given: Any = msgspec.json.decode(params)
        bound = shape.bind(**given) if isinstance(given, dict) else shape.bind(*given)
        return bound.args, bound.kwargs

    return bind


def _fields(parameters: list[Parameter]) -> list[Any]:
    """Describe parameters to msgspec; those with a default may be absent."""
    fields: list[Any] = []
    for parameter in parameters:
        kind = Any if parameter.annotation is Parameter.empty else parameter.annotation
        if parameter.default is Parameter.empty:
            fields.append((parameter.name, kind))
        else:
            fields.append((parameter.name, Union[kind, UnsetType], UNSET))
    return fields


def _required(parameters: list[Parameter], kind: object) -> list[str]:
    return [p.name for p in parameters if p.kind is kind and p.default is Parameter.empty]


def _reason(text: str) -> str:
    """Shorten msgspec's message, and take out the one kind of value that it would quote."""
    if text.startswith("Invalid enum value"):
        text = "invalid enum value" + text[text.rfind(" - at ") :]
    return text[:1].lower() + text[1:]
