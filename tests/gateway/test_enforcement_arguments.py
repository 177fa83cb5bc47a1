"""Invalid arguments: explained in the form of each revision, and never forwarded."""

from typing import Any
from unittest.mock import Mock

import pytest

from tests.backends.search_gateway import searching
from tests.gateway.governed import allow, deny
from tests.gateway.servers import (
    Server,
    SessionClient,
    add,
    make_gateway,
    running,
    session_client,
    text_of,
    tool,
)
from tests.gateway.stateless_callers import StatelessCaller
from tests.gateway.test_pipeline import record_calls
from tests.gateway.test_router_call_tool import CALL
from trunkline.gateway import enforcement as module
from trunkline.gateway.call_context import CallContext
from trunkline.gateway.enforcement import (
    ArgumentChecker,
    EnforcementChain,
    PolicyEnforcer,
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
from trunkline.routing.conditions import Condition
from trunkline.routing.policy import Policy

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


COUNTED = {
    "type": "object",
    "properties": {"path": {"type": "string"}, "count": {"type": "integer"}},
    "required": ["path"],
    "additionalProperties": False,
}
WRONG_TYPES = [
    {"path": "/", "count": "1"},
    {"path": "/", "count": None},
    {"path": "/", "count": 1.5},
    {"path": 1},
    {"path": None},
    {"path": ["/"]},
]


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


@pytest.mark.holds("C21")
@pytest.mark.parametrize("version", ["2025-06-18", "2025-11-25"])
@pytest.mark.parametrize("arguments", WRONG_TYPES)
async def test_wrong_types_and_nulls_reach_the_server_unchanged_and_are_noted(
    version: str, arguments: Any
) -> None:
    server = Server(tools=[tool("read", inputSchema=COUNTED)])
    gateway, _ = gateway_with_checker(server)
    async with running(gateway, server), SessionClient(gateway) as user:
        await user.hello(version)
        summaries = record_calls(gateway)
        assert text_of(await user.call("fs__read", arguments=arguments)) == "read ran"
        (params,) = [params for method, params in server.received if method == "tools/call"]
        assert params["arguments"] == arguments
        (summary,) = summaries
        assert summary.status == "success"
        assert "value is not of type" in str(summary.context.mismatch)


@pytest.mark.parametrize("arguments", [{}, {"count": 1}, {"path": "/", "more": 1}, [], "x", None])
@pytest.mark.parametrize("mode", ["lenient", "strict"])
async def test_what_no_server_could_mean_is_refused(mode: Any, arguments: Any) -> None:
    server = Server(tools=[tool("read", inputSchema=COUNTED)])
    gateway, _ = gateway_with_checker(server, mode=mode)
    async with running(gateway, server), SessionClient(gateway) as user:
        await user.hello("2025-06-18")
        summaries = record_calls(gateway)
        params = {"name": "fs__read", "arguments": arguments}
        error = await user.expect_error("tools/call", params)
        assert error.code == -32602
        assert server.count("tools/call") == 0
        (summary,) = summaries
        assert summary.status == "invalid_arguments"
        # The record says why.
        assert summary.context.mismatch
        assert error.message.endswith(summary.context.mismatch)


@pytest.mark.parametrize("arguments", WRONG_TYPES)
def test_a_strict_check_refuses_wrong_types_and_nulls(arguments: Any) -> None:
    raw = bytes(to_raw(arguments))
    for checker in (
        ArgumentChecker(lambda _: None, "strict"),
        ArgumentChecker(lambda _: None, exceptions={"fs": "strict"}),
    ):
        assert check(checker, entry(COUNTED), raw, V2025_11_25)["isError"] is True
    checker = ArgumentChecker(lambda _: None, "strict", {"fs": "lenient"})
    assert check(checker, entry(COUNTED), raw, V2025_11_25) is None


def test_with_off_nothing_is_checked() -> None:
    checker = ArgumentChecker(lambda _: None, "off")
    assert checker.check_for(entry(COUNTED)) is None
    assert checker.check_for(entry(COUNTED), is_read=True) is None


def test_an_error_of_a_lenient_check_names_only_what_is_refused() -> None:
    checker = ArgumentChecker(lambda _: None)
    result = check(checker, entry(COUNTED), b'{"count":"1"}', V2025_11_25)
    assert result["content"][0]["text"] == WRONG


# Rules that read arguments


FORCED = {
    "type": "object",
    "properties": {"force": {"type": "boolean"}, "path": {"type": "string"}},
}
EVASIONS = [
    ("args.force == true", {"force": "true"}),
    ("args.force == true", {"force": 1}),
    ("args.force in [true]", {"force": "true"}),
    ("args.path == '/etc'", {"path": ["/etc"]}),
    ("has(args.force) && args.force != false", {"force": "true", "path": 1}),
    ("size(args.path) > 3", {"path": ["/etc/passwd"]}),
]


def forced_server() -> Server:
    return Server(tools=[tool("delete", inputSchema=FORCED), tool("other", inputSchema=FORCED)])


@pytest.mark.parametrize(("condition", "arguments"), EVASIONS)
async def test_a_value_of_another_type_evades_no_rule_that_reads_it(
    condition: str, arguments: Any
) -> None:
    server = forced_server()
    policy = Policy([deny("fs__delete", condition=Condition(condition)), allow()])
    gateway, _ = gateway_with_checker(server)
    gateway.pipeline.enforcer = EnforcementChain(
        PolicyEnforcer(policy), argument_checker=ArgumentChecker(lambda _: None)
    )
    async with running(gateway, server), SessionClient(gateway) as user:
        await user.hello()
        try:
            result = await user.call("fs__delete", arguments=arguments)
        except RpcError as error:
            assert error.code == -32003
        else:
            assert result["isError"] is True
        assert server.count("tools/call") == 0
        # No rule reads the arguments of this tool.
        assert text_of(await user.call("fs__other", arguments=arguments)) == "other ran"


async def test_a_rule_for_call_tool_makes_the_check_of_the_inner_tool_strict() -> None:
    server = forced_server()
    condition = Condition("args.arguments.force == true")
    policy = Policy([deny(CALL, condition=condition), allow()])
    async with searching(None, policy, fs=server) as gateway, session_client(gateway) as user:
        gateway.pipeline.enforcer = EnforcementChain(
            PolicyEnforcer(policy), argument_checker=ArgumentChecker(lambda _: None)
        )
        result = await user.call(CALL, arguments=wrapped_arguments({"force": "true"}))
        assert result["isError"] is True
        assert server.count("tools/call") == 0
        result = await user.call("fs__delete", arguments={"force": "true"})
        assert text_of(result) == "delete ran"


def wrapped_arguments(arguments: Any) -> Any:
    return {"name": "fs__delete", "arguments": arguments}


def test_tools_of_built_in_servers_are_not_checked() -> None:
    checker = ArgumentChecker(lambda _: None, exceptions={"fs": "off"})
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
    checker = ArgumentChecker(events.append, "strict")
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


async def test_arguments_are_checked_against_the_schema_of_the_server_and_not_the_normalised() -> (
    None
):
    schema = {"type": "object", "properties": {"a": {"type": ["string", "null"]}}}
    server = Server(tools=[tool("read", inputSchema=schema)])
    gateway, _ = gateway_with_checker(Server(), mode="strict")
    add(gateway, "files", server, normalises_schemas=True)
    async with running(gateway, server), SessionClient(gateway) as user:
        await user.hello()
        await gateway.registry.wait_complete()
        (listed,) = (await user.ask("tools/list"))["tools"]
        assert listed["inputSchema"]["properties"]["a"] == {
            "anyOf": [{"type": "string"}, {"type": "null"}]
        }
        (found,) = gateway.registry.catalog.entries(FeatureKind.TOOL)
        assert from_raw(input_schema(found)) == schema
        result = await user.call("files__read", arguments={"a": 1})
        assert 'not of types "null", "string"' in text_of(result)
        assert text_of(await user.call("files__read", arguments={"a": None})) == "read ran"
