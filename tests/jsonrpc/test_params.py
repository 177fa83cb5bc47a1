"""Params to arguments, checked against annotations."""

from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Any, Literal

import msgspec
import pytest

from tests.jsonrpc.test_raw import DEEP
from trunkline.jsonrpc import UNSET, LocalProtocolError, Raw, RpcError
from trunkline.jsonrpc.params import invoker, params_type


class Point(msgspec.Struct):
    x: int
    y: int = 0


class Colour(StrEnum):
    RED = "red"


def nothing() -> tuple[Any, ...]:
    return ()


def two(a: int, b: str) -> tuple[Any, ...]:
    return (a, b)


untyped: Callable[..., Any] = eval("lambda a, b: (a, b)")


def default(a: int, b: list[int] = [1], c: int | None = None) -> tuple[Any, ...]:  # noqa: B006
    return (a, b, c)


def positional_only(a: int, b: int = 2, /) -> tuple[Any, ...]:
    return (a, b)


def keyword_only(*, a: int, b: int = 2) -> tuple[Any, ...]:
    return (a, b)


def mixed(a: int = 1, *, b: int = 2) -> tuple[Any, ...]:
    return (a, b)


def variable(a: Any, *rest: Any, **named: Any) -> tuple[Any, ...]:
    return (a, rest, named)


def typed(p: Point, c: Colour, n: Annotated[int, msgspec.Meta(ge=1)], r: Raw) -> tuple[Any, ...]:
    return (p, c, n, bytes(r))


def closed(a: Literal["x"]) -> tuple[Any, ...]:
    return (a,)


def call(function: Callable[..., Any], params: bytes | None) -> Any:
    return invoker(function)(UNSET if params is None else Raw(params))


@pytest.mark.parametrize(
    ("function", "params", "expected"),
    [
        (nothing, None, ()),
        (nothing, b"[]", ()),
        (nothing, b"{}", ()),
        (two, b'[1,"x"]', (1, "x")),
        (two, b'{"b":"x","a":1}', (1, "x")),
        (untyped, b'[1,{"a":2}]', (1, {"a": 2})),
        (default, b"[1]", (1, [1], None)),
        (default, b"[1,[2]]", (1, [2], None)),
        (default, b'{"a":1,"c":3}', (1, [1], 3)),
        (default, b'{"a":1,"c":null}', (1, [1], None)),
        (positional_only, b"[1]", (1, 2)),
        (positional_only, b"[1,3]", (1, 3)),
        (keyword_only, b'{"a":1}', (1, 2)),
        (keyword_only, b'{"b":3,"a":1}', (1, 3)),
        (mixed, None, (1, 2)),
        (mixed, b"[5]", (5, 2)),
        (mixed, b'{"b":6}', (1, 6)),
        (variable, b'[1,"2",null]', (1, ("2", None), dict[str, Any]())),
        (variable, b'{"a":1,"z":2}', (1, (), {"z": 2})),
        (
            typed,
            b'{"p":{"x":1},"c":"red","n":3,"r":[1.0]}',
            (Point(1), Colour.RED, 3, b"[1.0]"),
        ),
    ],
)
def test_params_that_fit_become_arguments(
    function: Callable[..., Any], params: bytes | None, expected: Any
) -> None:
    assert call(function, params) == expected


@pytest.mark.parametrize(
    ("function", "params", "reason"),
    [
        (nothing, b"[1]", "length 0"),
        (nothing, b'{"a":1}', "unknown field `a`"),
        (two, None, "missing required field `a`"),
        (two, b"[1]", "length 2"),
        (two, b'[1,"x",3]', "length 2"),
        (two, b'{"a":1}', "missing required field `b`"),
        (two, b'{"a":1,"b":"x","c":1}', "unknown field `c`"),
        (two, b'{"a":"x","b":"x"}', "expected `int`, got `str` - at `$.a`"),
        (two, b"[true,1]", "expected `int`, got `bool` - at `$[0]`"),
        (default, None, "missing required field `a`"),
        (default, b"[1,[2],3,4]", "at most length 3"),
        (default, b'{"z":1}', "unknown field"),
        (positional_only, b'{"a":1}', "'a', which can only be given by position"),
        (keyword_only, b"[1]", "'a', which can only be given by name"),
        (keyword_only, None, "missing required field `a`"),
        (variable, None, "missing a required argument: 'a'"),
        (closed, b'["secret"]', "invalid enum value - at `$[0]`"),
        (variable, b"[" + DEEP + b"]", "nested too deeply"),
    ],
)
def test_params_that_do_not_fit_are_refused_with_the_place(
    function: Callable[..., Any], params: bytes | None, reason: str
) -> None:
    with pytest.raises(RpcError) as caught:
        call(function, params)
    assert caught.value.code == -32602
    assert caught.value.message.startswith("Invalid params: ")
    assert reason in caught.value.message
    assert "secret" not in caught.value.message


class Line(msgspec.Struct):
    x: int


def unreadable(a: Point | Line) -> None: ...


unknown: Callable[..., Any] = eval("lambda a: a")
unknown.__annotations__["a"] = "Nowhere"


@pytest.mark.parametrize("function", [unreadable, unknown])
def test_a_function_that_json_cannot_call_is_refused_when_it_is_registered(
    function: Callable[..., Any],
) -> None:
    with pytest.raises(LocalProtocolError, match="cannot read params for"):
        invoker(function)


def broken(a: int, b: int = 0) -> None:
    raise TypeError("a fault of its own")


def test_a_fault_of_the_function_is_not_the_callers() -> None:
    with pytest.raises(TypeError, match="of its own"):
        call(broken, b"[1]")


def test_the_params_of_a_function_are_a_type_of_their_own() -> None:
    def loose(a: int, b: Point | None = None, *rest: int, c: str, **more: int) -> None: ...

    kind = params_type(loose)
    read = msgspec.json.Decoder(kind).decode
    assert msgspec.structs.asdict(read(b'{"a": 1, "c": "x"}')) == {"a": 1, "b": UNSET, "c": "x"}
    for bad in (b'{"a": 1}', b'{"a": 1, "c": "x", "rest": []}', b'{"a": null, "c": "x"}'):
        with pytest.raises(msgspec.ValidationError):
            read(bad)
    assert params_type(positional_only).__struct_fields__ == ()
