"""Attempts to bypass a policy: by spelling, by nesting and by other methods. All fail."""

import asyncio
from typing import Any

import pytest

from tests.backends.search_gateway import searching
from tests.gateway.governed import (
    ALL_VERSIONS,
    CONDITIONAL_POLICY,
    DEV,
    NO_ETC,
    OPS,
    ROLES,
    GovernedClient,
    allow,
    deny,
    error_of,
    files,
    governed,
    set_policy,
)
from tests.gateway.servers import Server, text_of, tool
from trunkline.jsonrpc import Raw, RpcError, to_raw
from trunkline.mcp.identity import Principal
from trunkline.routing.conditions import Condition
from trunkline.routing.policy import Policy


@pytest.mark.parametrize(
    "name",
    [
        "FS__DELETE_ALL",
        "fs__Delete_all",
        "fs__delete_all ",
        " fs__delete_all",
        "fs__delete_all\u200b",
        "fs__dele\u0442e_all",
        "ｆｓ__delete_all",
        "ﬁs__delete_all",
        "fs__delete_all\0",
        "fs/delete_all",
        "fs____delete_all",
        "delete_all",
        "fs__fs__delete_all",
        "trunkline:fs:delete_all",
    ],
)
async def test_no_other_spelling_of_a_name_reaches_a_hidden_tool(name: str) -> None:
    server = files()
    async with governed(Policy(roles=ROLES), fs=server) as gateway:
        for client in (GovernedClient(gateway, DEV), GovernedClient(gateway, DEV, "2026-07-28")):
            code, _ = await client.expect_error("tools/call", name=name)
            assert code == -32602
        assert server.count("tools/call") == 0


@ALL_VERSIONS
async def test_an_escaped_name_is_treated_like_the_plain_name(version: str) -> None:
    server = files()
    async with governed(Policy(roles=ROLES), fs=server) as gateway:
        dev = GovernedClient(gateway, DEV, version)
        for params in (
            rb'{"na\u006de": "fs__delete_all"}',
            rb'{"name": "fs__d\u0065lete_all"}',
        ):
            hidden = await error_of(dev.ask_raw("tools/call", Raw(params)))
            assert hidden == (-32602, "Unknown tool: fs__delete_all")
        assert server.count("tools/call") == 0


@pytest.mark.parametrize(
    "arguments",
    [
        b'{"path": "/tmp", "path": "/etc/x"}',
        b'{"path": "/etc/x", "path": "/tmp"}',
        rb'{"path": "/tmp", "pa\u0074h": "/etc/x"}',
        b'{"path": "/tmp", "more": {"a": 1, "a": 2}}',
        b'{"path": "/tmp", "more": [[{"a": 1, "a": 2}]]}',
        rb'{"path": "/tmp\u0000/../etc"}',
        b'{"path": "/tmp", "n": 18446744073709551616}',
        b'{"path": "/tmp", "n": 1e999}',
        b'{"path": "/tmp", "deep": ' + b"[" * 90 + b"]" * 90 + b"}",
        b'{"path": "/tmp", "long": "' + b"x" * 1024 * 1024 + b'"}',
    ],
)
async def test_ambiguous_arguments_are_refused_if_a_rule_reads_them(arguments: bytes) -> None:
    server = files()
    async with governed(CONDITIONAL_POLICY, fs=server) as gateway:
        params = Raw(b'{"name": "fs__read", "arguments": ' + arguments + b"}")
        code, why = await error_of(GovernedClient(gateway, DEV).ask_raw("tools/call", params))
        assert code == -32602
        assert why.endswith("in 'arguments', which a rule reads")
        assert server.count("tools/call") == 0


async def test_arguments_that_no_rule_reads_are_forwarded_unchanged() -> None:
    server = files()
    async with governed(Policy([allow()]), fs=server) as gateway:
        params = b'{"name":"fs__read","arguments":{"a":1,"n":99999999999999999999999}}'
        await GovernedClient(gateway, DEV).ask_raw("tools/call", Raw(params))
        forwarded = server.requests[-1].params
        assert b'{"a":1,"n":99999999999999999999999}' in bytes(forwarded)  # type: ignore[arg-type]


async def test_evaluated_arguments_are_forwarded_byte_for_byte() -> None:
    server = files()
    arguments = rb'{ "path" : "/t\u006dp" , "n":1.0, "big": 18446744073709551615 }'
    async with governed(CONDITIONAL_POLICY, fs=server) as gateway:
        params = Raw(b'{"name": "fs__read", "arguments": ' + arguments + b"}")
        await GovernedClient(gateway, DEV).ask_raw("tools/call", params)
        assert arguments in bytes(server.requests[-1].params)  # type: ignore[arg-type]


async def test_every_call_of_a_batch_is_checked() -> None:
    server = files()
    async with governed(Policy(roles=ROLES), fs=server) as gateway:
        engine = gateway.open_engine(DEV)
        initialize_params = (
            '{"protocolVersion":"2025-03-26","capabilities":{},"clientInfo":{"name":"c"}}'
        )
        await engine.handle_json(
            f'{{"jsonrpc":"2.0","id":0,"method":"initialize","params":{initialize_params}}}'
        )
        await engine.handle_json('{"jsonrpc":"2.0","method":"notifications/initialized"}')
        call = '{{"jsonrpc":"2.0","id":{},"method":"tools/call","params":{{"name":"{}"}}}}'
        names = ("fs__read", "fs__delete_all", "fs__read")
        batch = ",".join(call.format(number, name) for number, name in enumerate(names, 1))
        answer = await engine.handle_json(f"[{batch}]")
    assert answer is not None
    assert answer.count("read ran") == 2
    assert "Unknown tool: fs__delete_all" in answer
    assert server.count("tools/call") == 2


async def test_a_server_cannot_impersonate_another_one_that_a_rule_names() -> None:
    # Two servers with the same prefix: "a" offers "b__c", and "a__b" offers "c".
    impostor, honest = Server(tools=[tool("b__c")]), Server(tools=[tool("c")])
    policy = Policy([allow("a__b__*", backends=("a__b",))])
    async with governed(policy, a=impostor, a__b=honest) as gateway:
        dev = GovernedClient(gateway, DEV)
        code, _ = await dev.expect_error(
            "tools/call", name="a__b__c"
        )  # the name belongs to the first server
        assert code == -32602
        assert impostor.count("tools/call") == 0
        (name,) = await dev.names()
        assert text_of(await dev.call(name)) == "c ran"
        assert honest.count("tools/call") == 1


@ALL_VERSIONS
async def test_a_wrapped_tool_call_is_checked_like_a_direct_one(version: str) -> None:
    server = files()
    policy = Policy([deny("fs__read", condition=NO_ETC)], ROLES)
    async with searching(None, policy, fs=server) as gateway:
        gateway.registry.start()
        await gateway.registry.wait_complete()
        dev = GovernedClient(gateway, DEV, version)

        async def call_wrapped(name: str, /, **arguments: Any) -> tuple[int, str]:
            wrapped = {"name": name, "arguments": arguments}
            request = dev.ask("tools/call", name="search__call_tool", arguments=wrapped)
            return await error_of(request)

        assert await call_wrapped("fs__delete_all") == (-32602, "Unknown tool: fs__delete_all")
        denied = await call_wrapped("fs__read", path="/etc/x")
        assert denied[1] == "Permission denied for tool: fs__read"
        nested = await call_wrapped("search__call_tool", name="fs__delete_all")
        assert nested == (-32602, "Unknown tool: search__call_tool")
        duplicate = b'{"path": "/tmp", "path": "/etc"}'
        inner = b'{"name": "fs__read", "arguments": ' + duplicate + b"}"
        params = b'{"name": "search__call_tool", "arguments": ' + inner + b"}"
        code, why = await error_of(dev.ask_raw("tools/call", Raw(params)))
        assert (code, "duplicate member 'path'" in why) == (-32602, True)
        dev.principal = viewer = Principal("vera", roles=("viewer",))
        if dev.session is not None:
            dev.session.update_principal(viewer)
        assert (await call_wrapped("fs__delete_all"))[
            1
        ] == "Permission denied for tool: search__call_tool"
        assert server.count("tools/call") == 0


HIDING = Policy([deny(backends=("fs",)), allow()])


@ALL_VERSIONS
async def test_no_method_reveals_a_hidden_server(version: str) -> None:
    server, other = files(), files()
    async with governed(HIDING, fs=server, other=other) as gateway:
        dev = GovernedClient(gateway, DEV, version)
        missing = -32602 if version == "2026-07-28" else -32002
        assert await dev.names() == ["other__read", "other__delete_all"]
        assert await dev.names("prompts/list") == ["other__plan"]
        for method in ("resources/list", "resources/templates/list"):
            assert all(uri.startswith("trunkline:other:") for uri in await dev.names(method))
        unknown = await dev.expect_error("prompts/get", name="fs__plan")
        assert unknown == (-32602, "Unknown prompt: fs__plan")
        for uri in ("file:///a", "file:///b/c", "trunkline:fs:file:///a"):
            assert (await dev.expect_error("resources/read", uri=uri))[0] == missing
        for ref in (
            {"type": "ref/prompt", "name": "fs__plan"},
            {"type": "ref/resource", "uri": "file:///{path}"},
            {"type": "ref/resource", "uri": "file:///a"},
        ):
            argument = {"argument": {"name": "path", "value": ""}}
            code, why = await dev.expect_error("completion/complete", ref=ref, **argument)
            assert (code, why) == (-32602, "Invalid params: unknown 'ref'")
        forwarded = [method for method, _ in server.received if "list" not in method]
        assert forwarded == ["initialize", "notifications/initialized"]


async def test_a_hidden_resource_cannot_be_subscribed() -> None:
    server = files()
    policy = Policy([deny("file:///a"), allow()])
    async with governed(policy, fs=server) as gateway:
        dev = GovernedClient(gateway, DEV)
        assert (await dev.expect_error("resources/subscribe", uri="file:///a"))[0] == -32002
        await dev.ask("resources/subscribe", uri="file:///b")
        assert [params["uri"] for method, params in server.received if "subscribe" in method] == [
            "file:///b"
        ]
        assert dev.session is not None
        await gateway.close_session(dev.session)


async def test_a_session_gets_no_updates_of_a_resource_once_it_is_hidden() -> None:
    server = files()
    async with governed(Policy([allow()]), fs=server) as gateway:
        dev, ops = GovernedClient(gateway, DEV), GovernedClient(gateway, OPS)
        for client in (dev, ops):
            await client.ask("resources/subscribe", uri="file:///a")
        set_policy(gateway, Policy([deny("file:*", roles=("dev",)), allow()]))
        await gateway.on_notification(
            "fs", "notifications/resources/updated", to_raw({"uri": "file:///a"})
        )
        assert (await ops.stream.next_notification())[0] == "notifications/resources/updated"
        assert dev.stream.take_notifications() == []
        for client in (dev, ops):
            assert client.session is not None
            await gateway.close_session(client.session)


async def test_a_session_loses_its_permissions_with_its_role() -> None:
    server = files()
    async with governed(Policy(roles=ROLES), fs=server) as gateway:
        client = GovernedClient(gateway, Principal("anna", roles=("ops",)))
        assert client.session is not None
        assert text_of(await client.call("fs__delete_all")) == "delete_all ran"
        client.session.update_principal(Principal("anna", roles=("dev",)))
        assert await client.names() == ["fs__read"]
        assert (await client.expect_error("tools/call", name="fs__delete_all"))[0] == -32602
        client.session.update_principal(Principal("anna"))
        assert await client.names() == []
        assert (await client.expect_error("tools/call", name="fs__read"))[0] == -32602
        assert server.count("tools/call") == 1


async def test_an_unavailable_server_is_not_revealed_to_callers_it_is_hidden_from() -> None:
    server, other = files(), files()
    server.broken = OSError("no")
    async with governed(HIDING, fs=server, other=other) as gateway:
        unknown = await GovernedClient(gateway, DEV).expect_error("tools/call", name="fs__read")
        assert unknown == (-32602, "Unknown tool: fs__read")
        set_policy(gateway, Policy([allow()]))
        assert (await GovernedClient(gateway, DEV).expect_error("tools/call", name="fs__read"))[
            0
        ] == -32007


async def test_messages_of_a_hidden_server_are_not_delivered() -> None:
    server, other = files(), files()
    async with governed(HIDING, fs=server, other=other) as gateway:
        dev = GovernedClient(gateway, DEV)
        log_message = to_raw({"level": "error", "data": "secret"})
        await gateway.on_notification("fs", "notifications/message", log_message)
        await gateway.on_notification("other", "notifications/message", log_message)
        assert (await dev.stream.next_notification())[0] == "notifications/message"
        assert dev.stream.take_notifications() == []
        with pytest.raises(RpcError, match="Method not found"):
            await gateway.on_request("fs", "roots/list", None, None)


async def test_with_a_policy_unknown_methods_are_refused() -> None:
    server = files()
    async with governed(Policy([allow()]), fs=server) as gateway:
        code, _ = await GovernedClient(gateway, DEV).expect_error("vendor/anything", name="x")
        assert code == -32601
        assert server.count("vendor/anything") == 0


async def test_a_completion_is_allowed_if_only_its_arguments_decide() -> None:
    server = files()
    policy = Policy([allow(condition=Condition("args.x == 1"))])
    async with governed(policy, fs=server) as gateway:
        ref = {"type": "ref/prompt", "name": "fs__plan"}
        argument = {"argument": {"name": "x", "value": ""}}
        await GovernedClient(gateway, DEV).ask("completion/complete", ref=ref, **argument)
        assert server.count("completion/complete") == 1


async def test_a_subscription_stream_gets_no_updates_of_a_resource_once_it_is_hidden() -> None:
    server = files()
    async with governed(Policy([allow()]), fs=server) as gateway:
        dev, ops = (GovernedClient(gateway, principal, "2026-07-28") for principal in (DEV, OPS))
        filters = {"resourceSubscriptions": ["file:///a"]}
        streams = [
            asyncio.create_task(client.ask("subscriptions/listen", notifications=filters))
            for client in (dev, ops)
        ]
        for client in (dev, ops):
            _, acknowledged = await client.stream.next_notification()
            assert acknowledged["notifications"]["resourceSubscriptions"] == ["file:///a"]
        set_policy(gateway, Policy([deny("file:*", roles=("dev",)), allow()]))
        await gateway.on_notification(
            "fs", "notifications/resources/updated", to_raw({"uri": "file:///a"})
        )
        assert (await ops.stream.next_notification())[0] == "notifications/resources/updated"
        assert dev.stream.take_notifications() == []
        gateway.stateless.end_subscriptions()
        await asyncio.gather(*streams)


@pytest.mark.parametrize("method", ["resources/read", "resources/subscribe"])
@pytest.mark.parametrize(
    "uri", ["file:///b/../secret", "file:///b/%2e%2e/secret", "FILE:///b", "file:////b"]
)
async def test_no_other_spelling_of_a_uri_reaches_a_server(method: str, uri: str) -> None:
    server = files()
    async with governed(HIDING, other=server) as gateway:
        dev = GovernedClient(gateway, DEV)
        _, why = await dev.expect_error(method, uri=uri)
        assert why.startswith("Resource not found: it")
        assert server.count(method) == 0
