"""Invalid arguments: explained in the form of each revision, and never forwarded."""

from typing import Any
from unittest.mock import Mock

import pytest

from tests.gateway.servers import Server, SessionClient, make_gateway, running, text_of, tool
from tests.gateway.stateless_callers import StatelessCaller
from trunkline.gateway import enforcement as module
from trunkline.gateway.call_context import CallContext
from trunkline.gateway.enforcement import (
    ArgumentChecker,
    EnforcementChain,
    find_unchecked_tools,
    input_schema,
)
from trunkline.gateway.events import CallSummary, UncheckedTool
from trunkline.gateway.gateway import Gateway
from trunkline.gateway.pipeline import Denied
from trunkline.jsonrpc import Raw, Request, RpcError, from_raw, to_raw
from trunkline.mcp.features import FeatureKind
from trunkline.mcp.identity import LOCAL_PRINCIPAL, Caller
from trunkline.mcp.methods import CLIENT_REQUESTS
from trunkline.mcp.params import Params
from trunkline.mcp.versions import V2025_06_18, V2025_11_25, Revision
from trunkline.routing.catalog import CatalogEntry

PATH = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
WRONG = 'Invalid arguments for tool fs__read: "path" is a required property'


def files() -> Server:
    return Server(tools=[tool("read", inputSchema=PATH), tool("any")], prompts=[{"name": "ask"}])


def gateway_with_checker(server: Server, **more: Any) -> tuple[Gateway, list[UncheckedTool]]:
    gateway = make_gateway(fs=server)
    events: list[UncheckedTool] = []
    gateway.pipeline.enforcer = EnforcementChain(
        argument_checker=ArgumentChecker(events.append, **more)
    )
    return gateway, events


def entry(schema: Any, name: str = "fs__read") -> CatalogEntry:
    definition = to_raw({"name": name, "inputSchema": schema})
    return CatalogEntry(FeatureKind.TOOL, name, "fs", "read", definition)


def check(
    checker: ArgumentChecker, entry: CatalogEntry, arguments: bytes | None, revision: Revision
) -> Any:
    caller = Caller(LOCAL_PRINCIPAL, revision, {}, Raw(b"{}"))
    params = Params(to_raw({"name": entry.public_name}))
    if arguments is not None:
        params.put("arguments", Raw(arguments))
    request = Request(1, "tools/call", params.encode())
    context = CallContext(
        caller,
        request,
        CLIENT_REQUESTS["tools/call"],
        params,
        Mock(caller=caller),
        arguments=params.get("arguments"),
    )
    check_call = checker.check_for(entry)
    denied = None if check_call is None else check_call(context)
    assert context.status == (None if denied is None else "invalid_arguments")
    if denied is None:
        return None
    assert isinstance(denied, Denied)
    if denied.error is not None:
        raise denied.error
    return from_raw(denied.result or Raw(b"null"))


@pytest.mark.holds("C21")
@pytest.mark.parametrize("version", ["2024-11-05", "2025-03-26", "2025-06-18"])
async def test_before_2025_11_25_invalid_arguments_are_an_error(version: str) -> None:
    server = files()
    gateway, _ = gateway_with_checker(server)
    async with running(gateway, server), SessionClient(gateway) as user:
        await user.hello(version)
        error = await user.expect_error("tools/call", {"name": "fs__read"})
        assert (error.code, error.message) == (-32602, WRONG)
        assert server.count("tools/call") == 0


@pytest.mark.holds("C21")
async def test_from_2025_11_25_on_invalid_arguments_are_a_tool_error() -> None:
    server = files()
    gateway, _ = gateway_with_checker(server)
    async with running(gateway, server), SessionClient(gateway) as user:
        await user.hello()
        answer = await user.call("fs__read", arguments={})
        assert answer == {"content": [{"type": "text", "text": WRONG}], "isError": True}
        assert server.count("tools/call") == 0
        assert text_of(await user.call("fs__read", arguments={"path": "/"})) == "read ran"


@pytest.mark.holds("C21")
async def test_in_2026_07_28_invalid_arguments_are_a_complete_tool_error() -> None:
    server = files()
    gateway, _ = gateway_with_checker(server)
    async with running(gateway, server):
        gateway.registry.start()
        await gateway.registry.wait_complete()
        answer = await StatelessCaller(gateway).call("fs__read")
        assert answer["resultType"] == "complete"
        assert answer["isError"] is True
        assert server.count("tools/call") == 0


async def test_invalid_arguments_are_recorded_without_upstream_time() -> None:
    server = files()
    gateway, _ = gateway_with_checker(server)
    events: list[Any] = []
    gateway.pipeline.events.add_listener(events.append)
    async with running(gateway, server):
        gateway.registry.start()
        await gateway.registry.wait_complete()
        await StatelessCaller(gateway).call("fs__read")
    (summary,) = [event for event in events if isinstance(event, CallSummary)]
    assert (summary.status, summary.upstream_duration) == ("invalid_arguments", 0.0)


async def test_prompts_and_tools_without_constraints_pass() -> None:
    server = files()
    gateway, events = gateway_with_checker(server)
    async with running(gateway, server), SessionClient(gateway) as user:
        await user.hello()
        await user.call("fs__any", arguments={"anything": 1})
        await user.ask("prompts/get", {"name": "fs__ask"})
    assert events == []


async def test_an_unknown_method_still_passes_to_the_only_server() -> None:
    server = files()
    server.methods["acme/do"] = lambda params: {"did": params}
    gateway, _ = gateway_with_checker(server)
    async with running(gateway, server), SessionClient(gateway) as user:
        await user.hello()
        await gateway.registry.wait_complete()
        assert await user.ask("acme/do", {"x": 1}) == {"did": {"x": 1}}


def test_tools_of_built_in_servers_are_not_checked() -> None:
    checker = ArgumentChecker(lambda _: None, builtin=["fs"])
    assert check(checker, entry(PATH), None, V2025_11_25) is None


def test_an_equal_schema_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[bytes] = []
    compile_schema = module.compile_schema

    def counting(schema: Raw) -> Any:
        compiled.append(bytes(schema))
        return compile_schema(schema)

    monkeypatch.setattr(module, "compile_schema", counting)
    checker = ArgumentChecker(lambda _: None)
    for _ in range(3):  # as on every rebuild of the catalogue
        for name in ("fs__read", "fs__stat"):
            assert check(checker, entry(PATH, name), b"{}", V2025_11_25) is not None
    assert len(compiled) == 1


def test_a_changed_tool_is_checked_against_its_new_schema() -> None:
    checker = ArgumentChecker(lambda _: None)
    assert check(checker, entry(PATH), None, V2025_11_25) is not None
    assert check(checker, entry({"type": "object"}), None, V2025_11_25) is None
    with pytest.raises(RpcError, match="no arguments are allowed"):
        check(checker, entry({"additionalProperties": False}), b'{"a":1}', V2025_06_18)


def test_the_number_of_cached_schemas_is_limited() -> None:
    checker = ArgumentChecker(lambda _: None, max_cached=3)
    for number in range(20):
        schema = {**PATH, "title": str(number)}
        check(checker, entry(schema, f"fs__{number}"), b'{"path":"x"}', V2025_11_25)
        assert len(checker) <= 6


def test_a_tool_with_an_invalid_schema_is_not_checked_and_reported_once() -> None:
    events: list[UncheckedTool] = []
    checker = ArgumentChecker(events.append)
    bad = entry({"type": "strin"})
    for _ in range(3):
        assert check(checker, bad, None, V2025_11_25) is None
    (event,) = events
    assert (event.name, event.backend) == ("fs__read", "fs")
    assert "its schema is invalid" in event.reason


def test_arguments_too_long_for_regular_expressions_pass_and_are_reported_once() -> None:
    events: list[UncheckedTool] = []
    checker = ArgumentChecker(events.append)
    names = entry({"patternProperties": {"^a+$": {"type": "string"}}})
    long = b'{"aa":1,"text":"%s"}' % (b"x" * 10_000)
    for _ in range(3):
        assert check(checker, names, long, V2025_11_25) is None
    assert [event.reason for event in events] == [
        "its arguments are too long for regular expressions"
    ]
    assert check(checker, names, b'{"aa":1}', V2025_11_25) is not None


def test_unchecked_tools_can_be_listed_in_advance() -> None:
    unchecked = find_unchecked_tools(
        [entry(PATH), entry({"$ref": "https://there.example"}, "fs__b")]
    )
    assert list(unchecked) == ["fs__b"]
    assert "not fetched" in unchecked["fs__b"]


def test_a_tool_without_a_schema_accepts_everything() -> None:
    without_schema = CatalogEntry(FeatureKind.TOOL, "t", "fs", "t", Raw(b'{"name":"t"}'))
    assert bytes(input_schema(without_schema)) == b"{}"
