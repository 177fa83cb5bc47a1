"""Authority: what callers hear who may not, what is remembered, and who is told of changes."""

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
from tests.gateway.letters import Paper, letter
from tests.gateway.servers import Server, text_of, tool
from tests.gateway.test_layers import watched
from trunkline.gateway import authority
from trunkline.gateway.authority import Authority, client_name
from trunkline.gateway.events import CallEnded
from trunkline.jsonrpc import Raw, Request, RpcError, from_raw, to_raw
from trunkline.mcp.cacheable import Freshness
from trunkline.mcp.caller import Caller
from trunkline.mcp.meta import Params
from trunkline.mcp.mirrors import Mirrors
from trunkline.mcp.offer import Kind
from trunkline.mcp.principal import Principal
from trunkline.routing.catalog import Entry
from trunkline.routing.conditions import Condition
from trunkline.routing.policy import Policy, Role
from trunkline.routing.view import MOST

HIDING = "role dev: denied_tools (trunkline.toml:3)"


def somebody(*roles: str, name: str = "p", client: str = "{}") -> Caller:
    return Caller(Principal(name, roles=roles), "2025-11-25", {}, Raw(client.encode()))


def entry(name: str = "fs__read", definition: str = "{}") -> Entry:
    return Entry(Kind.TOOL, name, "fs", name, Raw(definition.encode()))


# The three answers


@pytest.mark.holds("C20", "O0.9", "M9")
@ERAS
async def test_what_is_hidden_is_unknown_in_the_same_words_as_what_is_not_there(
    version: str,
) -> None:
    server = files()
    async with governed(Policy(roles=ROLES), fs=server) as made:
        dev, ends = Member(made, DEV, version), watched(made)
        assert await dev.names() == ["fs__read"]
        hidden = await dev.refusal("tools/call", name="fs__delete_all")
        missing = await dev.refusal("tools/call", name="fs__delete_nothing")
        assert hidden == (-32602, "Unknown tool: fs__delete_all")
        assert missing == (-32602, "Unknown tool: fs__delete_nothing")
        assert server.count("tools/call") == 0
        # What an operator reads tells them apart all the same.
        told = [(each.status, each.name, each.backend, each.rule) for each in ends]
        assert told[0] == ("unknown", "fs__delete_all", None, HIDING)
        assert told[1] == ("unknown", "fs__delete_nothing", None, None)
        assert text_of(await Member(made, OPS, version).call("fs__delete_all")) == "delete_all ran"


@pytest.mark.holds("C20", "O0.9")
@pytest.mark.parametrize(("version", "code"), [("2025-11-25", -32003), ("2026-07-28", 4030)])
async def test_who_may_read_and_not_execute_sees_what_it_may_not_call(
    version: str, code: int
) -> None:
    server = files()
    async with governed(Policy(roles=ROLES), fs=server) as made:
        viewer = Member(made, Principal("vera", roles=("viewer",)), version)
        assert await viewer.names() == ["fs__read", "fs__delete_all"]
        with pytest.raises(RpcError) as caught:
            await viewer.call("fs__read")
        assert caught.value.code == code
        assert caught.value.message == "Permission denied for tool: fs__read"
        assert caught.value.data == {"type": "not_allowed"}
        assert await viewer.names("prompts/list") == []
        assert server.count("tools/call") == 0


@ERAS
async def test_what_depends_on_arguments_is_listed_and_judged_by_them(version: str) -> None:
    server = files()
    async with governed(READING, fs=server) as made:
        dev = Member(made, DEV, version)
        assert "fs__read" in await dev.names()
        assert text_of(await dev.call("fs__read", path="/tmp/x")) == "read ran"
        _, why = await dev.refusal("tools/call", name="fs__read", arguments={"path": "/etc/x"})
        assert why == "Permission denied for tool: fs__read"
        _, why = await dev.refusal("tools/call", name="fs__read")
        assert why == "Permission denied for tool: fs__read"
        assert server.count("tools/call") == 1


async def test_the_rule_that_decided_is_noted() -> None:
    ended: list[CallEnded] = []
    policy = Policy(READING.rules, ROLES)
    async with governed(policy, fs=files()) as made:
        made.layers.events.listen(lambda e: ended.append(e) if isinstance(e, CallEnded) else None)
        dev = Member(made, DEV)
        await dev.call("fs__read", path="/tmp")
        await dev.refusal("tools/call", name="fs__read", arguments={"path": "/etc"})
        await dev.ask("prompts/get", name="fs__plan")
        await dev.refusal("tools/call", name="fs__delete_all")
    assert [(end.status, end.rule) for end in ended] == [
        ("success", "policy[1]"),
        ("denied", "policy[0]"),
        ("success", "policy[1]"),
        ("unknown", HIDING),
    ]


@ERAS
@pytest.mark.parametrize(
    ("method", "params", "name"),
    [
        ("prompts/get", {"name": "fs__plan"}, "fs__plan"),
        ("resources/read", {"uri": "file:///a"}, "file:///a"),
        ("resources/read", {"uri": "file:///b", "name": "harmless"}, "file:///b"),
        ("completion/complete", {"ref": {"type": "ref/prompt", "name": "fs__plan"}}, "fs__plan"),
        (
            "completion/complete",
            {"ref": {"type": "ref/resource", "uri": "file:///{path}", "name": "harmless"}},
            "file:///{path}",
        ),
    ],
)
async def test_whatever_is_hidden_is_noted_with_what_was_asked_and_the_rule_that_hides_it(
    version: str, method: str, params: dict[str, Any], name: str
) -> None:
    policy = Policy([deny("fs__plan", "file:*", place="policy[0]"), allow()])
    async with governed(policy, fs=files()) as made:
        dev, ends = Member(made, DEV, version), watched(made)
        argument = {"name": "x", "value": ""}
        await dev.refusal(method, **params, argument=argument)
    assert [(end.status, end.name, end.backend, end.rule) for end in ends] == [
        ("unknown", name, None, "policy[0]")
    ]


async def test_what_is_hidden_from_one_who_seems_to_come_back_is_noted() -> None:
    async with governed(Policy(roles=ROLES), fs=files()) as made:
        dev, ends = Member(made, DEV, "2026-07-28"), watched(made)
        back: dict[str, Any] = {"requestState": "x", "inputResponses": {}}
        refusal = await dev.refusal("tools/call", name="fs__delete_all", **back)
        assert refusal == (-32602, "Unknown tool: fs__delete_all")
    assert [(end.status, end.name, end.rule) for end in ends] == [
        ("unknown", "fs__delete_all", HIDING)
    ]


@ERAS
async def test_what_is_hidden_and_called_by_way_of_another_is_noted_by_its_own_name(
    version: str,
) -> None:
    async with searching(None, Policy(roles=ROLES), fs=files()) as made:
        made.registry.start()
        await made.registry.wait_settled()
        dev, ends = Member(made, DEV, version), watched(made)
        for name in ("fs__delete_all", "fs__delete_nothing", "search__call_tool"):
            refusal = await dev.refusal(
                "tools/call", name="search__call_tool", arguments={"name": name}
            )
            assert refusal == (-32602, f"Unknown tool: {name}")
    assert [(end.status, end.name, end.backend, end.rule) for end in ends] == [
        ("unknown", "fs__delete_all", None, HIDING),
        ("unknown", "fs__delete_nothing", None, None),
        ("unknown", "search__call_tool", None, None),
    ]


async def test_rules_know_clients_by_what_they_call_themselves() -> None:
    policy = Policy([allow(clients=("claude-*",)), allow("fs__plan")])
    async with governed(policy, fs=files()) as made:
        for version in ("2025-11-25", "2026-07-28"):
            assert len(await Member(made, DEV, version, "claude-code").names()) == 2
            assert await Member(made, DEV, version, "Claude-code").names() == []
            assert await Member(made, DEV, version, "").names() == []


async def test_rules_know_tools_by_their_annotations() -> None:
    read_only: dict[str, Any] = {"annotations": {"readOnlyHint": True}}
    server = Server(tools=[tool("look", **read_only), tool("touch")])
    policy = Policy([allow(hints=(("readOnlyHint", True),))])
    async with governed(policy, s=server) as made:
        dev = Member(made, DEV)
        assert await dev.names() == ["s__look"]
        assert text_of(await dev.call("s__look")) == "look ran"
        assert (await dev.refusal("tools/call", name="s__touch"))[0] == -32602


# What is remembered


def test_callers_are_told_apart_only_by_what_rules_read() -> None:
    plain = Authority(Policy([allow(roles=("dev",))]))
    assert plain.key(somebody("dev", name="a")) == plain.key(somebody("dev", name="b"))
    assert plain.key(somebody("dev")) != plain.key(somebody("ops"))
    subjects = Authority(Policy([allow(subjects=("a",))]))
    assert subjects.key(somebody(name="a")) != subjects.key(somebody(name="b"))
    named = '{"name": "x"}'
    assert subjects.key(somebody(client=named)) == subjects.key(somebody())
    clients = Authority(Policy([allow(condition=Condition("client == 'x'"))]))
    assert clients.key(somebody(client=named)) != clients.key(somebody())
    assert clients.key(somebody(name="a")) == clients.key(somebody(name="b"))


def test_a_decision_is_made_once_for_each_definition() -> None:
    judge = Authority(Policy([allow(hints=(("readOnlyHint", True),))]))
    known = entry()
    assert judge.standing(somebody(), known) is judge.standing(somebody(), known)
    changed = entry(definition='{"annotations": {"readOnlyHint": true}}')
    assert not judge.sees(somebody(), known)
    assert judge.sees(somebody(), changed)


def test_only_so_many_decisions_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authority, "MOST", 3)
    judge = Authority(Policy([allow()]))
    known = entry("a")
    first = judge.standing(somebody(), known)
    for name in ("b", "c"):
        judge.standing(somebody(), entry(name))
    assert judge.standing(somebody(), known) is first
    judge.standing(somebody(), entry("d"))
    assert judge.standing(somebody(), known) is not first
    long = entry("x" * 300)
    assert judge.standing(somebody(), long) is not judge.standing(somebody(), long)


@pytest.mark.parametrize(
    ("client", "name"),
    [('{"name": "x"}', "x"), ("{}", ""), ('{"name": 3}', ""), ("[]", ""), ("null", "")],
)
def test_a_client_that_does_not_say_its_name_is_nobody_in_particular(
    client: str, name: str
) -> None:
    assert client_name(Raw(client.encode())) == name


def test_what_could_be_allowed_for_some_arguments_may_go_on() -> None:
    judge = Authority(Policy(READING.rules, {}))
    judge.recheck(somebody(), entry())
    with pytest.raises(RpcError, match="Permission denied for tool: fs__read"):
        Authority(Policy(roles=ROLES)).recheck(somebody("viewer"), entry())


@pytest.mark.holds("M9")
async def test_what_is_listed_is_what_is_not_unknown() -> None:
    roles = ROLES | {"none": Role()}
    rules = [deny("fs__read", condition=NO_ETC), allow("*__plan", subjects=("anna",))]
    policy = Policy(rules, roles)
    async with governed(policy, fs=files(), db=files()) as made:
        everything = [entry.public for entry in made.registry.catalog.entries(Kind.TOOL)]
        for role in roles:
            for version in ("2025-11-25", "2026-07-28"):
                member = Member(made, Principal("anna", roles=(role,)), version)
                listed = await member.names()
                for name in everything:
                    try:
                        await member.call(name, path="/tmp")
                        known = True
                    except RpcError as error:
                        known = not error.message.startswith("Unknown tool")
                    assert known is (name in listed), (role, name)


async def test_sessions_and_listeners_are_told_when_they_may_see_something_else() -> None:
    async with governed(Policy(roles=ROLES), fs=files()) as made:
        dev = Member(made, DEV)
        before = await dev.names()
        govern(made, Policy([allow("fs__delete_*")]))
        made.registry.publish(frozenset(("tools", "prompts", "resources")))
        told = {(await dev.paper.hear())[0] for _ in range(3)}
        assert told == {f"notifications/{kind}/list_changed" for kind in ("tools", "prompts")} | {
            "notifications/resources/list_changed"
        }
        assert (before, await dev.names()) == (["fs__read"], ["fs__delete_all"])


async def test_lists_of_the_envelope_era_are_written_once_for_each_sort_of_caller() -> None:
    async with governed(Policy(roles=ROLES), fs=files()) as made:
        made.registry.catalog.freshness = Freshness(1000, public=True)

        def listed(principal: Principal) -> Any:
            request = Request(1, "tools/list", to_raw(letter()))
            params, mirrors = Params(request.params), Mirrors({}, frozenset())
            return made.answer(request, params, principal, Paper(), mirrors)

        first = [listed(who) for who in (DEV, OPS)]
        again = [listed(who) for who in (DEV, OPS, Principal("other", roles=("dev",)))]
        assert again[0] is again[2] is first[0]
        assert again[1] is first[1] is not first[0]
        # What one may see another may not: nobody between us keeps it for both.
        assert from_raw(first[0], dict[str, Any])["cacheScope"] == "private"
        for number in range(MOST):
            listed(Principal("p", roles=(f"r{number}",)))
        assert listed(DEV) is not first[0]


@ERAS
@pytest.mark.parametrize("arguments", [b"[1]", b"null", b'"x"', b"5"])
async def test_arguments_that_are_no_object_are_noted_as_wrong_and_whose_they_were(
    version: str, arguments: bytes
) -> None:
    server = files()
    async with governed(Policy(roles=ROLES), fs=server) as made:
        dev, ends = Member(made, DEV, version), watched(made)
        for method, name in (
            ("tools/call", "fs__read"),
            ("prompts/get", "fs__plan"),
            ("tools/call", "fs__delete_all"),
            ("tools/call", "fs__nothing"),
        ):
            params = b'{"name":"%s","arguments":%s}' % (name.encode(), arguments)
            refusal = await refused(dev.ask_raw(method, Raw(params)))
            assert refusal == (-32602, "Invalid params: expected an object as 'arguments'")
        assert server.count("tools/call") == server.count("prompts/get") == 0
    told = [(end.status, end.name, end.backend, end.rule is None) for end in ends]
    assert told == [
        ("invalid_arguments", "fs__read", "fs", True),
        ("invalid_arguments", "fs__plan", "fs", True),
        ("unknown", "fs__delete_all", None, False),
        ("unknown", "fs__nothing", None, True),
    ]
    assert [end.arguments for end in ends] == [Raw(arguments), Raw(arguments), None, None]
