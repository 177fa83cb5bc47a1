"""Python functions as tools."""

import asyncio
import json
from typing import Annotated, Any, Literal

import msgspec
import pytest

from tests.contexts import call_of, start_call
from tests.tasks import hang_guard
from trunkline.backends.functions import FunctionBackend, ToolResult, input_schema, tool_result
from trunkline.gateway.settings import UpstreamSettings
from trunkline.gateway.upstream import DownstreamClient, Upstream, UpstreamState
from trunkline.jsonrpc import Raw, RpcError, from_raw, to_raw
from trunkline.mcp.features import FeatureKind
from trunkline.mcp.identity import Caller, Principal
from trunkline.mcp.versions import V2024_11_05, V2025_03_26, V2025_06_18, V2025_11_25, Revision


class Point(msgspec.Struct):
    x: int
    y: int = 0


class SilentClient:
    """A client for calls that send it nothing."""

    address = ""
    has_pending_requests = False

    def __init__(self, revision: Revision) -> None:
        self.caller = Caller(Principal("p"), revision, {}, Raw(b"{}"))

    async def send_request(self, method: str, params: Any, requester: object = None) -> Raw:
        raise RpcError.method_not_found(method)

    async def notify(self, method: str, params: Any) -> None: ...

    def on_session_renewed(self) -> None: ...

    def queue_notification(self, method: str, params: object) -> None: ...

    @property
    def call_group(self) -> Any:
        return self

    def on_features_changed(self, capability: str) -> None: ...

    async def on_notification(self, method: str, params: Any) -> None: ...

    async def on_request(self, method: str, params: Any, requester: object = None) -> Raw:
        raise RpcError.method_not_found(method)


tools = FunctionBackend()


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


async def call(name: str, arguments: Any = None, revision: Revision = V2025_11_25) -> Any:
    params = {"name": name} if arguments is None else {"name": name, "arguments": arguments}
    client: DownstreamClient = SilentClient(revision)
    return from_raw(await start_call(tools, call_of(client, to_raw(params))), object)


@pytest.mark.holds("S1.16")
async def test_a_definition_is_made_from_name_docstring_and_annotations() -> None:
    offers = (await tools.list_features()).features
    assert [(offer.kind, offer.key) for offer in offers] == [
        (FeatureKind.TOOL, name) for name in ("add", "where", "greet", "break")
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


def test_own_types_are_defined_in_the_schema() -> None:
    schema = input_schema(where)
    assert schema["properties"]["point"] == {"$ref": "#/$defs/Point"}
    assert schema["properties"]["mode"] == {"enum": ["long", "short"]}
    assert schema["$defs"]["Point"]["required"] == ["x"]
    assert schema["required"] == ["point"]


def test_a_function_without_parameters_takes_an_empty_object() -> None:
    schema = input_schema(greet)
    assert (schema["type"], schema["properties"]) == ("object", {})


@pytest.mark.holds("S1.11")
async def test_functions_are_called_sync_or_async() -> None:
    assert (await call("add", {"a": 2}))["content"] == [{"type": "text", "text": "3"}]
    assert (await call("add", {"a": 2, "b": 3}))["content"][0]["text"] == "5"
    assert await call("greet") == {"content": [{"type": "text", "text": "hello"}]}
    result = await call("where", {"point": {"x": 1}})
    assert json.loads(result["content"][0]["text"]) == {"x": 1, "mode": "short"}


@pytest.mark.holds("C21")
@pytest.mark.parametrize("arguments", [{}, {"a": "1"}, {"a": 1, "c": 2}, {"a": 1.5}, None])
async def test_invalid_arguments_are_explained_in_the_form_of_the_revision(arguments: Any) -> None:
    result = await call("add", arguments)
    assert result["isError"] is True
    assert result["content"][0]["text"].startswith("Invalid params: ")
    with pytest.raises(RpcError) as refused:
        await call("add", arguments, revision=V2025_06_18)
    assert refused.value.code == -32602


@pytest.mark.parametrize(
    ("revision", "structured"),
    [(V2024_11_05, False), (V2025_03_26, False), (V2025_06_18, True), (V2025_11_25, True)],
)
async def test_structured_content_is_for_revisions_that_have_it(
    revision: Revision, structured: bool
) -> None:
    result = await call("where", {"point": {"x": 1}}, revision)
    assert ("structuredContent" in result) is structured
    if structured:
        assert result["structuredContent"] == {"x": 1, "mode": "short"}


@pytest.mark.parametrize("value", [[1], 1, None, True, "text"])
def test_only_objects_are_structured_content(value: Any) -> None:
    assert "structuredContent" not in from_raw(tool_result(value, V2025_11_25), dict[str, Any])


@pytest.mark.holds("S1.11")
def test_a_tool_result_has_its_own_text_and_structured_content() -> None:
    result = from_raw(tool_result(ToolResult("three", Point(3)), V2025_11_25), dict[str, Any])
    assert result == {
        "content": [{"type": "text", "text": "three"}],
        "structuredContent": {"x": 3, "y": 0},
    }
    older = from_raw(tool_result(ToolResult("no", Point(3), is_error=True), V2025_03_26), object)
    assert older == {"content": [{"type": "text", "text": "no"}], "isError": True}


async def test_a_tool_declares_its_output_schema() -> None:
    class Line(msgspec.Struct):
        points: tuple[Point, ...]

    functions = FunctionBackend()
    functions.tool("draw", output=Line)(greet)
    functions.tool("mark", output=Point)(greet)
    line, point = [
        from_raw(o.definition, dict[str, Any]) for o in (await functions.list_features()).features
    ]
    assert line["outputSchema"]["type"] == "object"
    assert line["outputSchema"]["$defs"]["Point"]["required"] == ["x"]
    assert "$defs" not in point["outputSchema"]


@pytest.mark.parametrize("arguments", [[1, 2], 1, "a", None])
async def test_arguments_are_an_object(arguments: Any) -> None:
    client: DownstreamClient = SilentClient(V2025_06_18)
    params = to_raw({"name": "add", "arguments": arguments})
    with pytest.raises(RpcError) as refused:
        await start_call(tools, call_of(client, params))
    assert refused.value.code == -32602


async def test_an_unknown_tool_is_named_and_so_is_an_unknown_method() -> None:
    with pytest.raises(RpcError) as refused:
        await call("nothing")
    assert (refused.value.code, refused.value.message) == (-32602, "Unknown tool: nothing")
    silent_client = SilentClient(V2025_11_25)
    with pytest.raises(RpcError) as refused:
        await start_call(tools, call_of(silent_client, Raw(b"{}"), method="prompts/get"))
    assert refused.value.code == -32601


async def test_exceptions_of_a_function_pass() -> None:
    with pytest.raises(ZeroDivisionError):
        await call("break")


async def test_it_implements_the_backend_protocol() -> None:
    functions = FunctionBackend()
    functions.tool("greet")(greet)
    ready = asyncio.Event()

    async def connect(listener: object) -> FunctionBackend:
        return functions

    def changed(_: object) -> None:
        if upstream.state is UpstreamState.READY:
            ready.set()

    silent_client = SilentClient(V2025_11_25)
    upstream = Upstream(UpstreamSettings("f", "f"), connect, changed, silent_client, lambda: 0.0)
    running = asyncio.create_task(upstream.run())
    async with hang_guard():
        await ready.wait()
        assert upstream.snapshot().revision == functions.revision
        assert functions.capabilities == {"tools": {}}
        greeting = call_of(silent_client, to_raw({"name": "greet"}))
        assert b"hello" in bytes(await start_call(upstream, greeting))
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await functions.wait_ended()
