"""How a policy could be got round: by spelling, by nesting, by asking otherwise; and is not."""

import asyncio
from typing import Any

import pytest

from tests.backends.search_gateway import searching
from tests.gateway.governed import (
    DEV,
    ERAS,
    NO_ETC,
    OPS,
    READING,
    ROLES,
    Member,
    allow,
    deny,
    files,
    govern,
    governed,
    refused,
)
from tests.gateway.servers import Server, text_of, tool
from trunkline.jsonrpc import Raw, RpcError, to_raw
from trunkline.mcp.principal import Principal
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
async def test_no_other_spelling_of_a_name_reaches_a_tool(name: str) -> None:
    server = files()
    async with governed(Policy(roles=ROLES), fs=server) as made:
        for member in (Member(made, DEV), Member(made, DEV, "2026-07-28")):
            code, _ = await member.refusal("tools/call", name=name)
            assert code == -32602
        assert server.count("tools/call") == 0


@ERAS
async def test_an_escaped_name_is_the_name(version: str) -> None:
    server = files()
    async with governed(Policy(roles=ROLES), fs=server) as made:
        dev = Member(made, DEV, version)
        for params in (
            rb'{"na\u006de": "fs__delete_all"}',
            rb'{"name": "fs__d\u0065lete_all"}',
        ):
            hidden = await refused(dev.ask_raw("tools/call", Raw(params)))
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
async def test_arguments_that_could_be_read_in_two_ways_are_refused(arguments: bytes) -> None:
    server = files()
    async with governed(READING, fs=server) as made:
        params = Raw(b'{"name": "fs__read", "arguments": ' + arguments + b"}")
        code, why = await refused(Member(made, DEV).ask_raw("tools/call", params))
        assert code == -32602
        assert why.endswith("in 'arguments', which a rule reads")
        assert server.count("tools/call") == 0


async def test_what_no_rule_reads_goes_through_as_it_is() -> None:
    server = files()
    async with governed(Policy([allow()]), fs=server) as made:
        params = b'{"name":"fs__read","arguments":{"a":1,"n":99999999999999999999999}}'
        await Member(made, DEV).ask_raw("tools/call", Raw(params))
        forwarded = server.requests[-1].params
        assert b'{"a":1,"n":99999999999999999999999}' in bytes(forwarded)  # type: ignore[arg-type]


async def test_what_was_judged_is_what_is_forwarded_to_the_byte() -> None:
    server = files()
    arguments = rb'{ "path" : "/t\u006dp" , "n":1.0, "big": 18446744073709551615 }'
    async with governed(READING, fs=server) as made:
        params = Raw(b'{"name": "fs__read", "arguments": ' + arguments + b"}")
        await Member(made, DEV).ask_raw("tools/call", params)
        assert arguments in bytes(server.requests[-1].params)  # type: ignore[arg-type]


async def test_every_call_of_a_batch_is_judged_by_itself() -> None:
    server = files()
    async with governed(Policy(roles=ROLES), fs=server) as made:
        engine = made.open_engine(DEV)
        said = '{"protocolVersion":"2025-03-26","capabilities":{},"clientInfo":{"name":"c"}}'
        await engine.handle_json(
            f'{{"jsonrpc":"2.0","id":0,"method":"initialize","params":{said}}}'
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


async def test_a_server_cannot_take_another_ones_place_where_rules_name_servers() -> None:
    # Two servers whose names make one prefix: "a" offers "b__c", and "a__b" offers "c".
    liar, honest = Server(tools=[tool("b__c")]), Server(tools=[tool("c")])
    policy = Policy([allow("a__b__*", backends=("a__b",))])
    async with governed(policy, a=liar, a__b=honest) as made:
        dev = Member(made, DEV)
        code, _ = await dev.refusal("tools/call", name="a__b__c")  # the first has the name
        assert code == -32602
        assert liar.count("tools/call") == 0
        (name,) = await dev.names()
        assert text_of(await dev.call(name)) == "c ran"
        assert honest.count("tools/call") == 1


@ERAS
async def test_a_tool_that_is_called_by_way_of_another_is_judged_as_itself(version: str) -> None:
    server = files()
    policy = Policy([deny("fs__read", condition=NO_ETC)], ROLES)
    async with searching(None, policy, fs=server) as made:
        made.registry.start()
        await made.registry.wait_settled()
        dev = Member(made, DEV, version)

        async def by_way(name: str, /, **arguments: Any) -> tuple[int, str]:
            wrapped = {"name": name, "arguments": arguments}
            calling = dev.ask("tools/call", name="search__call_tool", arguments=wrapped)
            return await refused(calling)

        assert await by_way("fs__delete_all") == (-32602, "Unknown tool: fs__delete_all")
        denied = await by_way("fs__read", path="/etc/x")
        assert denied[1] == "Permission denied for tool: fs__read"
        nested = await by_way("search__call_tool", name="fs__delete_all")
        assert nested == (-32602, "Unknown tool: search__call_tool")
        twice = b'{"path": "/tmp", "path": "/etc"}'
        inside = b'{"name": "fs__read", "arguments": ' + twice + b"}"
        params = b'{"name": "search__call_tool", "arguments": ' + inside + b"}"
        code, why = await refused(dev.ask_raw("tools/call", Raw(params)))
        assert (code, "duplicate member 'path'" in why) == (-32602, True)
        dev.principal = viewer = Principal("vera", roles=("viewer",))
        if dev.session is not None:
            dev.session.recognise(viewer)
        assert (await by_way("fs__delete_all"))[1] == "Permission denied for tool: fs__delete_all"
        assert server.count("tools/call") == 0


HIDING = Policy([deny(backends=("fs",)), allow()])


@ERAS
async def test_nothing_of_a_hidden_server_is_there_in_any_way(version: str) -> None:
    server, other = files(), files()
    async with governed(HIDING, fs=server, other=other) as made:
        dev = Member(made, DEV, version)
        missing = -32602 if version == "2026-07-28" else -32002
        assert await dev.names() == ["other__read", "other__delete_all"]
        assert await dev.names("prompts/list") == ["other__plan"]
        for method in ("resources/list", "resources/templates/list"):
            assert all(uri.startswith("trunkline:other:") for uri in await dev.names(method))
        unknown = await dev.refusal("prompts/get", name="fs__plan")
        assert unknown == (-32602, "Unknown prompt: fs__plan")
        for uri in ("file:///a", "file:///b/c", "trunkline:fs:file:///a"):
            assert (await dev.refusal("resources/read", uri=uri))[0] == missing
        for ref in (
            {"type": "ref/prompt", "name": "fs__plan"},
            {"type": "ref/resource", "uri": "file:///{path}"},
            {"type": "ref/resource", "uri": "file:///a"},
        ):
            given = {"argument": {"name": "path", "value": ""}}
            code, why = await dev.refusal("completion/complete", ref=ref, **given)
            assert (code, why) == (-32602, "Invalid params: unknown 'ref'")
        reached = [method for method, _ in server.heard if "list" not in method]
        assert reached == ["initialize", "notifications/initialized"]


async def test_a_resource_that_is_hidden_cannot_be_followed_or_listened_to() -> None:
    server = files()
    policy = Policy([deny("file:///a"), allow()])
    async with governed(policy, fs=server) as made:
        dev = Member(made, DEV)
        assert (await dev.refusal("resources/subscribe", uri="file:///a"))[0] == -32002
        await dev.ask("resources/subscribe", uri="file:///b")
        assert [params["uri"] for method, params in server.heard if "subscribe" in method] == [
            "file:///b"
        ]
        assert dev.session is not None
        await made.close(dev.session)


async def test_who_follows_a_resource_hears_no_more_of_it_once_it_is_hidden() -> None:
    server = files()
    async with governed(Policy([allow()]), fs=server) as made:
        dev, ops = Member(made, DEV), Member(made, OPS)
        for member in (dev, ops):
            await member.ask("resources/subscribe", uri="file:///a")
        govern(made, Policy([deny("file:*", roles=("dev",)), allow()]))
        await made.told("fs", "notifications/resources/updated", to_raw({"uri": "file:///a"}))
        assert (await ops.paper.hear())[0] == "notifications/resources/updated"
        assert dev.paper.everything() == []
        for member in (dev, ops):
            assert member.session is not None
            await made.close(member.session)


async def test_a_session_whose_role_was_taken_away_loses_what_it_gave() -> None:
    server = files()
    async with governed(Policy(roles=ROLES), fs=server) as made:
        member = Member(made, Principal("anna", roles=("ops",)))
        assert member.session is not None
        assert text_of(await member.call("fs__delete_all")) == "delete_all ran"
        member.session.recognise(Principal("anna", roles=("dev",)))
        assert await member.names() == ["fs__read"]
        assert (await member.refusal("tools/call", name="fs__delete_all"))[0] == -32602
        member.session.recognise(Principal("anna"))
        assert await member.names() == []
        assert (await member.refusal("tools/call", name="fs__read"))[0] == -32602
        assert server.count("tools/call") == 1


async def test_a_server_that_is_down_is_not_given_away_to_those_who_may_not_know_it() -> None:
    server, other = files(), files()
    server.broken = OSError("no")
    async with governed(HIDING, fs=server, other=other) as made:
        unknown = await Member(made, DEV).refusal("tools/call", name="fs__read")
        assert unknown == (-32602, "Unknown tool: fs__read")
        govern(made, Policy([allow()]))
        assert (await Member(made, DEV).refusal("tools/call", name="fs__read"))[0] == -32007


async def test_a_hidden_server_says_nothing_to_those_who_may_not_know_it() -> None:
    server, other = files(), files()
    async with governed(HIDING, fs=server, other=other) as made:
        dev = Member(made, DEV)
        news = to_raw({"level": "error", "data": "secret"})
        await made.told("fs", "notifications/message", news)
        await made.told("other", "notifications/message", news)
        assert (await dev.paper.hear())[0] == "notifications/message"
        assert dev.paper.everything() == []
        with pytest.raises(RpcError, match="Method not found"):
            await made.asked("fs", "roots/list", None, None)


async def test_a_method_that_nobody_could_judge_is_passed_on_to_nobody() -> None:
    server = files()
    async with governed(Policy([allow()]), fs=server) as made:
        code, _ = await Member(made, DEV).refusal("vendor/anything", name="x")
        assert code == -32601
        assert server.count("vendor/anything") == 0


async def test_completion_of_what_depends_on_arguments_waits_for_none() -> None:
    server = files()
    policy = Policy([allow(condition=Condition("args.x == 1"))])
    async with governed(policy, fs=server) as made:
        ref = {"type": "ref/prompt", "name": "fs__plan"}
        given = {"argument": {"name": "x", "value": ""}}
        await Member(made, DEV).ask("completion/complete", ref=ref, **given)
        assert server.count("completion/complete") == 1


async def test_who_listens_to_a_resource_hears_no_more_of_it_once_it_is_hidden() -> None:
    server = files()
    async with governed(Policy([allow()]), fs=server) as made:
        dev, ops = (Member(made, who, "2026-07-28") for who in (DEV, OPS))
        wishes = {"resourceSubscriptions": ["file:///a"]}
        listening = [
            asyncio.create_task(member.ask("subscriptions/listen", notifications=wishes))
            for member in (dev, ops)
        ]
        for member in (dev, ops):
            _, said = await member.paper.hear()
            assert said["notifications"]["resourceSubscriptions"] == ["file:///a"]
        govern(made, Policy([deny("file:*", roles=("dev",)), allow()]))
        await made.told("fs", "notifications/resources/updated", to_raw({"uri": "file:///a"}))
        assert (await ops.paper.hear())[0] == "notifications/resources/updated"
        assert dev.paper.everything() == []
        made.stateless.end()
        await asyncio.gather(*listening)
