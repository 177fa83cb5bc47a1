"""Python functions as tools."""

import asyncio
import json
from typing import Annotated, Any, Literal

import msgspec
import pytest

from trunkline.backends.functions import Answer, Functions, input_schema, tool_result
from trunkline.gateway.settings import Settings
from trunkline.gateway.upstream import Client, State, Upstream
from trunkline.jsonrpc import Raw, RpcError, from_raw, to_raw
from trunkline.mcp.caller import Caller
from trunkline.mcp.meta import Params
from trunkline.mcp.offer import Kind
from trunkline.mcp.principal import Principal
from trunkline.routing.call import Call


class Point(msgspec.Struct):
    x: int
    y: int = 0


class Nobody:
    """The client of a call that concerns no client."""

    answering = False

    def __init__(self, version: str) -> None:
        self.caller = Caller(Principal("p"), version, {}, Raw(b"{}"))

    async def ask(self, method: str, params: Any, asker: object = None) -> Raw:
        raise RpcError.method_not_found(method)

    async def tell(self, method: str, params: Any) -> None: ...

    def session_renewed(self) -> None: ...

    def post(self, method: str, params: object) -> None: ...

    @property
    def party(self) -> Any:
        return self

    def offers_changed(self, capability: str) -> None: ...

    async def told(self, method: str, params: Any) -> None: ...

    async def asked(self, method: str, params: Any, asker: object = None) -> Raw:
        raise RpcError.method_not_found(method)


tools = Functions()


@tools.tool("add", readOnlyHint=True)
def add(a: int, b: Annotated[int, msgspec.Meta(description="the other")] = 1) -> int:
    """Add two numbers.

    They may be negative.
    """
    return a + b


@tools.tool("where")
async def where(point: Point, mode: Literal["short", "long"] = "short") -> dict[str, Any]:
    await asyncio.sleep(0)
    return {"x": point.x, "mode": mode}


@tools.tool("greet")
def greet() -> str:
    return "hello"


@tools.tool("break")
def broken() -> None:
    raise ZeroDivisionError


async def call(name: str, arguments: Any = None, version: str = "2025-11-25") -> Any:
    params = {"name": name} if arguments is None else {"name": name, "arguments": arguments}
    client: Client = Nobody(version)
    made = Call(client.caller, 1, "tools/call", Params(to_raw(params)))
    return from_raw(await tools.call(made, client), object)


async def test_a_definition_is_made_from_name_docstring_and_annotations() -> None:
    offers = await tools.offers()
    assert [(offer.kind, offer.key) for offer in offers] == [
        (Kind.TOOL, name) for name in ("add", "where", "greet", "break")
    ]
    assert from_raw(offers[0].definition, object) == {
        "name": "add",
        "description": "Add two numbers.\n\nThey may be negative.",
        "inputSchema": {
            "type": "object",
            "properties": {
                "a": {"type": "integer"},
                "b": {"type": "integer", "description": "the other"},
            },
            "required": ["a"],
            "additionalProperties": False,
        },
        "annotations": {"readOnlyHint": True},
    }
    second: Any = from_raw(offers[1].definition, object)
    assert second["description"] == "where"
    assert "annotations" not in second


def test_types_of_ones_own_are_defined_in_the_schema() -> None:
    schema = input_schema(where)
    assert schema["properties"]["point"] == {"$ref": "#/$defs/Point"}
    assert schema["properties"]["mode"] == {"enum": ["long", "short"]}
    assert schema["$defs"]["Point"]["required"] == ["x"]
    assert schema["required"] == ["point"]


def test_a_function_without_parameters_takes_an_empty_object() -> None:
    schema = input_schema(greet)
    assert (schema["type"], schema["properties"]) == ("object", {})


async def test_functions_are_called_sync_or_async() -> None:
    assert (await call("add", {"a": 2}))["content"] == [{"type": "text", "text": "3"}]
    assert (await call("add", {"a": 2, "b": 3}))["content"][0]["text"] == "5"
    assert await call("greet") == {"content": [{"type": "text", "text": "hello"}]}
    result = await call("where", {"point": {"x": 1}})
    assert json.loads(result["content"][0]["text"]) == {"x": 1, "mode": "short"}


@pytest.mark.holds("C21")
@pytest.mark.parametrize("arguments", [{}, {"a": "1"}, {"a": 1, "c": 2}, {"a": 1.5}, None])
async def test_bad_arguments_are_explained_where_the_revision_wants_it(arguments: Any) -> None:
    result = await call("add", arguments)
    assert result["isError"] is True
    assert result["content"][0]["text"].startswith("Invalid params: ")
    with pytest.raises(RpcError) as refused:
        await call("add", arguments, version="2025-06-18")
    assert refused.value.code == -32602


@pytest.mark.parametrize(
    ("version", "structured"),
    [("2024-11-05", False), ("2025-03-26", False), ("2025-06-18", True), ("2025-11-25", True)],
)
async def test_structure_is_for_those_who_know_of_it(version: str, structured: bool) -> None:
    result = await call("where", {"point": {"x": 1}}, version)
    assert ("structuredContent" in result) is structured
    if structured:
        assert result["structuredContent"] == {"x": 1, "mode": "short"}


@pytest.mark.parametrize("value", [[1], 1, None, True, "text"])
def test_only_objects_are_structure(value: Any) -> None:
    assert "structuredContent" not in from_raw(tool_result(value, "2025-11-25"), dict[str, Any])


def test_an_answer_is_text_and_structure_in_its_own_words() -> None:
    said = from_raw(tool_result(Answer("three", Point(3)), "2025-11-25"), dict[str, Any])
    assert said == {
        "content": [{"type": "text", "text": "three"}],
        "structuredContent": {"x": 3, "y": 0},
    }
    older = from_raw(tool_result(Answer("no", Point(3), is_error=True), "2025-03-26"), object)
    assert older == {"content": [{"type": "text", "text": "no"}], "isError": True}


async def test_a_tool_says_what_its_structure_looks_like() -> None:
    class Line(msgspec.Struct):
        points: tuple[Point, ...]

    functions = Functions()
    functions.tool("draw", output=Line)(greet)
    functions.tool("mark", output=Point)(greet)
    line, point = [from_raw(o.definition, dict[str, Any]) for o in await functions.offers()]
    assert line["outputSchema"]["type"] == "object"
    assert line["outputSchema"]["$defs"]["Point"]["required"] == ["x"]
    assert "$defs" not in point["outputSchema"]


@pytest.mark.parametrize("arguments", [[1, 2], 1, "a", None])
async def test_arguments_are_an_object(arguments: Any) -> None:
    client: Client = Nobody("2025-06-18")
    params = to_raw({"name": "add", "arguments": arguments})
    with pytest.raises(RpcError) as refused:
        await tools.call(Call(client.caller, 1, "tools/call", Params(params)), client)
    assert refused.value.code == -32602


async def test_an_unknown_tool_is_named_and_an_unknown_method_as_well() -> None:
    with pytest.raises(RpcError) as refused:
        await call("nothing")
    assert (refused.value.code, refused.value.message) == (-32602, "Unknown tool: nothing")
    nobody = Nobody("2025-11-25")
    with pytest.raises(RpcError) as refused:
        await tools.call(Call(nobody.caller, 1, "prompts/get", Params(Raw(b"{}"))), nobody)
    assert refused.value.code == -32601


async def test_what_a_function_raises_is_for_others_to_answer() -> None:
    with pytest.raises(ZeroDivisionError):
        await call("break")


async def test_it_is_a_backend_like_any_other() -> None:
    functions = Functions()
    functions.tool("greet")(greet)
    ready = asyncio.Event()

    async def connect(listener: object) -> Functions:
        return functions

    def changed(_: object) -> None:
        if upstream.state is State.READY:
            ready.set()

    nobody = Nobody("2025-11-25")
    upstream = Upstream(Settings("f", "f"), connect, changed, nobody, lambda: 0.0)
    running = asyncio.create_task(upstream.run())
    async with asyncio.timeout(5):
        await ready.wait()
        assert upstream.snapshot().version == functions.version
        assert functions.capabilities == {"tools": {}}
        await functions.tell("notifications/roots/list_changed", None)
        made = Call(nobody.caller, 1, "tools/call", Params(to_raw({"name": "greet"})))
        assert b"hello" in bytes(await upstream.call(made, nobody))
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await functions.wait_ended()
