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
from msgspec import Struct, defstruct
from msgspec.structs import asdict, astuple

from trunkline.jsonrpc.errors import LocalProtocolError, RpcError
from trunkline.jsonrpc.raw import UNSET, Raw, UnsetType, first_byte

Invoke: TypeAlias = Callable[[Raw | UnsetType], Any]

_NONE = Raw(b"{}")
_ARRAY = ord("[")

_PLAIN = Parameter.POSITIONAL_OR_KEYWORD
_VARIABLE = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


def invoker(function: Callable[..., Any]) -> Invoke:
    """Return what calls `function` with params, or raises Invalid params and does not call it."""
    try:
        shape = signature(function, eval_str=True)
        parameters = list(shape.parameters.values())
        if any(p.kind in _VARIABLE for p in parameters):
            return _loose(function, shape)
        if all(p.kind is _PLAIN and p.default is Parameter.empty for p in parameters):
            return _strict(function, parameters)
        return _with_defaults(function, parameters)
    except (TypeError, NameError) as why:  # an annotation that msgspec or Python cannot resolve
        raise LocalProtocolError(f"cannot read params for {function!r}: {why}") from why


def params_type(function: Callable[..., Any]) -> type[Struct]:
    """Return the type of an object that holds the params of `function` by name."""
    parameters = signature(function, eval_str=True).parameters.values()
    usable = [p for p in parameters if p.kind not in (*_VARIABLE, Parameter.POSITIONAL_ONLY)]
    return defstruct("Params", _fields(usable), forbid_unknown_fields=True, kw_only=True)


# Each way to read params is one closure, so that a call costs no more steps than it needs. What the
# function itself raises is outside of the `try`: a TypeError of its own is no fault of the caller.


def _strict(function: Callable[..., Any], parameters: list[Parameter]) -> Invoke:
    """Read all params, by position or by name, in one pass: what most functions need."""
    fields = _fields(parameters)
    named = defstruct("Params", fields, forbid_unknown_fields=True)
    # No Python type says "one of these", so the checker has to take it on trust.
    row: Any = tuple[tuple(kind for _, kind, *_ in fields)] if fields else tuple[()]
    read: Callable[[Raw], Any] = msgspec.json.Decoder(Union[named, row]).decode

    def invoke(params: Raw | UnsetType) -> Any:
        try:
            found = read(_NONE if params is UNSET else params)
        except (msgspec.ValidationError, RecursionError) as why:
            raise _invalid(why) from None
        return function(*(astuple(found) if type(found) is named else found))

    return invoke


def _with_defaults(function: Callable[..., Any], parameters: list[Parameter]) -> Invoke:
    """Read the params that are there; Python itself fills in the others."""
    by_position = _fields([p for p in parameters if p.kind is not Parameter.KEYWORD_ONLY])
    by_name = _fields([p for p in parameters if p.kind is not Parameter.POSITIONAL_ONLY])
    row = defstruct("Params", by_position, array_like=True, forbid_unknown_fields=True)
    named = defstruct("Params", by_name, forbid_unknown_fields=True, kw_only=True)
    read_row = msgspec.json.Decoder(row).decode
    read_named = msgspec.json.Decoder(named).decode
    needs_names = _required(parameters, Parameter.KEYWORD_ONLY)
    needs_row = _required(parameters, Parameter.POSITIONAL_ONLY)

    def read(params: Raw) -> tuple[list[Any], dict[str, Any]]:
        if first_byte(params) == _ARRAY:
            if needs_names:
                raise TypeError(f"missing {needs_names[0]!r}, which can only be given by name")
            return [value for value in astuple(read_row(params)) if value is not UNSET], {}
        if needs_row:
            raise TypeError(f"missing {needs_row[0]!r}, which can only be given by position")
        given = asdict(read_named(params))
        return [], {name: value for name, value in given.items() if value is not UNSET}

    def invoke(params: Raw | UnsetType) -> Any:
        try:
            positional, by_name = read(_NONE if params is UNSET else params)
        except (msgspec.ValidationError, TypeError, RecursionError) as why:
            raise _invalid(why) from None
        return function(*positional, **by_name)

    return invoke


def _loose(function: Callable[..., Any], shape: Signature) -> Invoke:
    """Let Python itself decide what fits a function that takes whatever comes."""

    def invoke(params: Raw | UnsetType) -> Any:
        try:
            given: Any = {} if params is UNSET else msgspec.json.decode(params)
            bound = shape.bind(**given) if isinstance(given, dict) else shape.bind(*given)
        except (TypeError, RecursionError) as why:
            raise _invalid(why) from None
        return function(*bound.args, **bound.kwargs)

    return invoke


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


def _invalid(why: Exception) -> RpcError:
    """Build the refusal, without the one kind of value that msgspec would quote."""
    if isinstance(why, RecursionError):
        return RpcError.invalid_params("nested too deeply")
    text = str(why)
    if text.startswith("Invalid enum value"):
        text = "invalid enum value" + text[text.rfind(" - at ") :]
    return RpcError.invalid_params(text[:1].lower() + text[1:])
