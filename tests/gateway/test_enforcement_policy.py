"""Policy enforcement: responses to forbidden calls, cached decisions and notified changes."""

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
from tests.gateway.stateless_callers import RecordingStream, stateless_params
from tests.gateway.test_pipeline import record_calls
from trunkline.gateway.decision_cache import MAX_CACHED_LISTS, DecisionCache
from trunkline.gateway.enforcement import PolicyEnforcer, client_name
from trunkline.gateway.events import CallSummary
from trunkline.jsonrpc import Raw, Request, RpcError, from_raw, to_raw
from trunkline.mcp.cache_hints import CacheHints
from trunkline.mcp.features import FeatureKind
from trunkline.mcp.http_headers import HeaderCheck
from trunkline.mcp.identity import Caller, Principal
from trunkline.mcp.params import Params
from trunkline.mcp.versions import V2025_11_25
from trunkline.routing.catalog import CatalogEntry
from trunkline.routing.conditions import Condition
from trunkline.routing.policy import Policy, Role, Rule

HIDING = "role dev: denied_tools (trunkline.toml:3)"


def make_caller(*roles: str, name: str = "p", client: str = "{}") -> Caller:
    return Caller(Principal(name, roles=roles), V2025_11_25, {}, Raw(client.encode()))


def entry(name: str = "fs__read", definition: str = "{}") -> CatalogEntry:
    return CatalogEntry(FeatureKind.TOOL, name, "fs", name, Raw(definition.encode()))


# Hidden, denied and allowed


@pytest.mark.holds("C20", "O0.9", "M9")
@ALL_VERSIONS
async def test_a_hidden_tool_gets_the_same_error_as_a_missing_one(
    version: str,
) -> None:
    server = files()
    async with governed(Policy(roles=ROLES), fs=server) as gateway:
        dev, summaries = GovernedClient(gateway, DEV, version), record_calls(gateway)
        assert await dev.names() == ["fs__read"]
        hidden = await dev.expect_error("tools/call", name="fs__delete_all")
        missing = await dev.expect_error("tools/call", name="fs__delete_nothing")
        assert hidden == (-32602, "Unknown tool: fs__delete_all")
        assert missing == (-32602, "Unknown tool: fs__delete_nothing")
        assert server.count("tools/call") == 0
        # The recorded events still distinguish them for the operator.
        records = [(each.status, each.name, each.backend, each.rule) for each in summaries]
        assert records[0] == ("denied", "fs__delete_all", "fs", HIDING)
        assert records[1] == ("unknown", "fs__delete_nothing", None, None)
        assert (
            text_of(await GovernedClient(gateway, OPS, version).call("fs__delete_all"))
            == "delete_all ran"
        )


@pytest.mark.holds("C20", "O0.9", "C22")
@pytest.mark.parametrize(("version", "code"), [("2025-11-25", -32003), ("2026-07-28", 4030)])
async def test_a_caller_with_only_read_permission_sees_tools_but_cannot_call_them(
    version: str, code: int
) -> None:
    server = files()
    async with governed(Policy(roles=ROLES), fs=server) as gateway:
        viewer = GovernedClient(gateway, Principal("vera", roles=("viewer",)), version)
        assert await viewer.names() == ["fs__read", "fs__delete_all"]
        with pytest.raises(RpcError) as raised:
            await viewer.call("fs__read")
        assert raised.value.code == code
        assert raised.value.message == "Permission denied for tool: fs__read"
        assert raised.value.data == {"type": "not_allowed"}
        assert await viewer.names("prompts/list") == []
        assert server.count("tools/call") == 0


@ALL_VERSIONS
async def test_a_tool_with_conditional_rules_is_listed_and_its_arguments_are_evaluated(
    version: str,
) -> None:
    server = files()
    async with governed(CONDITIONAL_POLICY, fs=server) as gateway:
        dev = GovernedClient(gateway, DEV, version)
        assert "fs__read" in await dev.names()
        assert text_of(await dev.call("fs__read", path="/tmp/x")) == "read ran"
        _, why = await dev.expect_error("tools/call", name="fs__read", arguments={"path": "/etc/x"})
        assert why == "Permission denied for tool: fs__read"
        _, why = await dev.expect_error("tools/call", name="fs__read")
        assert why == "Permission denied for tool: fs__read"
        assert server.count("tools/call") == 1


@pytest.mark.parametrize(("version", "code"), [("2025-11-25", -32003), ("2026-07-28", 4030)])
async def test_a_caller_who_sees_the_tool_gets_the_message_of_the_rule(
    version: str, code: int
) -> None:
    advice = "Write below /data instead."
    rules = [
        deny("fs__read", condition=NO_ETC, message=advice),
        deny("fs__delete_all", message=advice),
        allow(),
    ]
    async with governed(Policy(rules), fs=files()) as gateway:
        dev = GovernedClient(gateway, DEV, version)
        refused = await dev.expect_error(
            "tools/call", name="fs__read", arguments={"path": "/etc/x"}
        )
        assert refused == (code, f"Permission denied for tool: fs__read: {advice}")
        # The rule hides this tool, so its message would show that the tool exists.
        hidden = await dev.expect_error("tools/call", name="fs__delete_all")
        assert hidden == (-32602, "Unknown tool: fs__delete_all")


async def test_the_deciding_rule_is_recorded() -> None:
    summaries: list[CallSummary] = []
    policy = Policy(CONDITIONAL_POLICY.rules, ROLES)
    async with governed(policy, fs=files()) as gateway:
        gateway.pipeline.events.add_listener(
            lambda e: summaries.append(e) if isinstance(e, CallSummary) else None
        )
        dev = GovernedClient(gateway, DEV)
        await dev.call("fs__read", path="/tmp")
        await dev.expect_error("tools/call", name="fs__read", arguments={"path": "/etc"})
        await dev.ask("prompts/get", name="fs__plan")
        await dev.expect_error("tools/call", name="fs__delete_all")
    assert [(summary.status, summary.rule) for summary in summaries] == [
        ("success", "policy[1]"),
        ("denied", "policy[0]"),
        ("success", "policy[1]"),
        ("denied", HIDING),
    ]


@ALL_VERSIONS
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
async def test_a_call_of_a_hidden_feature_is_recorded_with_its_name_and_the_hiding_rule(
    version: str, method: str, params: dict[str, Any], name: str
) -> None:
    policy = Policy([deny("fs__plan", "file:*", location="policy[0]"), allow()])
    async with governed(policy, fs=files()) as gateway:
        dev, summaries = GovernedClient(gateway, DEV, version), record_calls(gateway)
        argument = {"name": "x", "value": ""}
        await dev.expect_error(method, **params, argument=argument)
    assert [
        (summary.status, summary.name, summary.backend, summary.rule) for summary in summaries
    ] == [("denied", name, "fs", "policy[0]")]


async def test_a_retry_of_a_hidden_tool_is_recorded_with_the_hiding_rule() -> None:
    async with governed(Policy(roles=ROLES), fs=files()) as gateway:
        dev, summaries = GovernedClient(gateway, DEV, "2026-07-28"), record_calls(gateway)
        retry_params: dict[str, Any] = {"requestState": "x", "inputResponses": {}}
        refusal = await dev.expect_error("tools/call", name="fs__delete_all", **retry_params)
        assert refusal == (-32602, "Unknown tool: fs__delete_all")
    assert [(summary.status, summary.name, summary.rule) for summary in summaries] == [
        ("denied", "fs__delete_all", HIDING)
    ]


@ALL_VERSIONS
async def test_a_wrapped_call_of_a_hidden_tool_is_recorded_by_the_wrapped_name(
    version: str,
) -> None:
    async with searching(None, Policy(roles=ROLES), fs=files()) as gateway:
        gateway.registry.start()
        await gateway.registry.wait_complete()
        dev, summaries = GovernedClient(gateway, DEV, version), record_calls(gateway)
        for name in ("fs__delete_all", "fs__delete_nothing", "search__call_tool"):
            refusal = await dev.expect_error(
                "tools/call", name="search__call_tool", arguments={"name": name}
            )
            assert refusal == (-32602, f"Unknown tool: {name}")
    assert [
        (summary.status, summary.name, summary.backend, summary.rule) for summary in summaries
    ] == [
        ("denied", "fs__delete_all", "fs", HIDING),
        ("unknown", "fs__delete_nothing", None, None),
        ("unknown", "search__call_tool", None, None),
    ]


async def test_rules_match_clients_by_their_announced_name() -> None:
    policy = Policy([allow(clients=("claude-*",)), allow("fs__plan")])
    async with governed(policy, fs=files()) as gateway:
        for version in ("2025-11-25", "2026-07-28"):
            assert len(await GovernedClient(gateway, DEV, version, "claude-code").names()) == 2
            assert await GovernedClient(gateway, DEV, version, "Claude-code").names() == []
            assert await GovernedClient(gateway, DEV, version, "").names() == []


async def test_rules_match_tools_by_their_annotations() -> None:
    read_only: dict[str, Any] = {"annotations": {"readOnlyHint": True}}
    server = Server(tools=[tool("look", **read_only), tool("touch")])
    policy = Policy([allow(hints=(("readOnlyHint", True),))])
    async with governed(policy, s=server) as gateway:
        dev = GovernedClient(gateway, DEV)
        assert await dev.names() == ["s__look"]
        assert text_of(await dev.call("s__look")) == "look ran"
        assert (await dev.expect_error("tools/call", name="s__touch"))[0] == -32602


# Cached decisions


def test_the_visibility_key_has_only_what_rules_read() -> None:
    plain = PolicyEnforcer(Policy([allow(roles=("dev",))]))
    assert plain.visibility_key(make_caller("dev", name="a")) == plain.visibility_key(
        make_caller("dev", name="b")
    )
    assert plain.visibility_key(make_caller("dev")) != plain.visibility_key(make_caller("ops"))
    subjects = PolicyEnforcer(Policy([allow(subjects=("a",))]))
    assert subjects.visibility_key(make_caller(name="a")) != subjects.visibility_key(
        make_caller(name="b")
    )
    named = '{"name": "x"}'
    assert subjects.visibility_key(make_caller(client=named)) == subjects.visibility_key(
        make_caller()
    )
    clients = PolicyEnforcer(Policy([allow(condition=Condition("client == 'x'"))]))
    assert clients.visibility_key(make_caller(client=named)) != clients.visibility_key(
        make_caller()
    )
    assert clients.visibility_key(make_caller(name="a")) == clients.visibility_key(
        make_caller(name="b")
    )


def test_a_decision_is_cached_for_each_definition() -> None:
    enforcer = PolicyEnforcer(Policy([allow(hints=(("readOnlyHint", True),))]))
    entry_a = entry()
    assert enforcer.decision_for(make_caller(), entry_a) is enforcer.decision_for(
        make_caller(), entry_a
    )
    changed = entry(definition='{"annotations": {"readOnlyHint": true}}')
    assert not enforcer.is_visible(make_caller(), entry_a)
    assert enforcer.is_visible(make_caller(), changed)


def test_the_number_of_cached_decisions_is_limited() -> None:
    enforcer = PolicyEnforcer(Policy([allow()]), DecisionCache(max_decisions=3))
    entry_a = entry("a")
    first = enforcer.decision_for(make_caller(), entry_a)
    for name in ("b", "c"):
        enforcer.decision_for(make_caller(), entry(name))
    assert enforcer.decision_for(make_caller(), entry_a) is first
    enforcer.decision_for(make_caller(), entry("d"))
    assert enforcer.decision_for(make_caller(), entry_a) is not first
    long = entry("x" * 300)
    assert enforcer.decision_for(make_caller(), long) is not enforcer.decision_for(
        make_caller(), long
    )


@pytest.mark.parametrize(
    ("client", "name"),
    [('{"name": "x"}', "x"), ("{}", ""), ('{"name": 3}', ""), ("[]", ""), ("null", "")],
)
def test_a_client_without_a_valid_name_has_an_empty_name(client: str, name: str) -> None:
    assert client_name(Raw(client.encode())) == name


def test_a_check_without_arguments_allows_tools_with_conditional_rules() -> None:
    enforcer = PolicyEnforcer(Policy(CONDITIONAL_POLICY.rules, {}))
    enforcer.check_without_arguments(make_caller(), entry())
    with pytest.raises(RpcError, match="Permission denied for tool: fs__read"):
        PolicyEnforcer(Policy(roles=ROLES)).check_without_arguments(make_caller("viewer"), entry())


@pytest.mark.holds("M9")
async def test_exactly_the_listed_tools_are_not_unknown() -> None:
    roles = ROLES | {"none": Role()}
    rules = [deny("fs__read", condition=NO_ETC), allow("*__plan", subjects=("anna",))]
    policy = Policy(rules, roles)
    async with governed(policy, fs=files(), db=files()) as gateway:
        all_names = [
            entry.public_name for entry in gateway.registry.catalog.entries(FeatureKind.TOOL)
        ]
        for role in roles:
            for version in ("2025-11-25", "2026-07-28"):
                client = GovernedClient(gateway, Principal("anna", roles=(role,)), version)
                listed = await client.names()
                for name in all_names:
                    try:
                        await client.call(name, path="/tmp")
                        is_known = True
                    except RpcError as error:
                        is_known = not error.message.startswith("Unknown tool")
                    assert is_known is (name in listed), (role, name)


async def test_sessions_are_notified_when_a_new_policy_changes_their_lists() -> None:
    async with governed(Policy(roles=ROLES), fs=files()) as gateway:
        dev = GovernedClient(gateway, DEV)
        before = await dev.names()
        set_policy(gateway, Policy([allow("fs__delete_*")]))
        gateway.registry.publish(frozenset(("tools", "prompts", "resources")))
        assert (await dev.stream.next_notification())[0] == "notifications/tools/list_changed"
        assert (before, await dev.names()) == (["fs__read"], ["fs__delete_all"])


async def test_stateless_lists_are_encoded_once_per_visibility_key() -> None:
    async with governed(Policy(roles=ROLES), fs=files()) as gateway:
        gateway.registry.catalog.cache_hints = CacheHints(1000, public=True)

        def listed(principal: Principal) -> Any:
            request = Request(1, "tools/list", to_raw(stateless_params()))
            params, header_check = Params(request.params), HeaderCheck({}, frozenset())
            return gateway.handle_stateless(
                request, params, principal, RecordingStream(), header_check
            )

        first = [listed(principal) for principal in (DEV, OPS)]
        again = [listed(principal) for principal in (DEV, OPS, Principal("other", roles=("dev",)))]
        assert again[0] is again[2] is first[0]
        assert again[1] is first[1] is not first[0]
        # Callers see different lists, so no shared cache may keep one.
        assert from_raw(first[0], dict[str, Any])["cacheScope"] == "private"
        for number in range(MAX_CACHED_LISTS):
            listed(Principal("p", roles=(f"r{number}",)))
        assert listed(DEV) is not first[0]


@ALL_VERSIONS
@pytest.mark.parametrize("arguments", [b"[1]", b"null", b'"x"', b"5"])
async def test_arguments_that_are_no_object_are_recorded_as_invalid(
    version: str, arguments: bytes
) -> None:
    server = files()
    async with governed(Policy(roles=ROLES), fs=server) as gateway:
        dev, summaries = GovernedClient(gateway, DEV, version), record_calls(gateway)
        for method, name in (
            ("tools/call", "fs__read"),
            ("prompts/get", "fs__plan"),
            ("tools/call", "fs__delete_all"),
            ("tools/call", "fs__nothing"),
        ):
            params = b'{"name":"%s","arguments":%s}' % (name.encode(), arguments)
            refusal = await error_of(dev.ask_raw(method, Raw(params)))
            assert refusal == (-32602, "Invalid params: expected an object as 'arguments'")
        assert server.count("tools/call") == server.count("prompts/get") == 0
    records = [
        (summary.status, summary.name, summary.backend, summary.rule is None)
        for summary in summaries
    ]
    assert records == [
        ("invalid_arguments", "fs__read", "fs", True),
        ("invalid_arguments", "fs__plan", "fs", True),
        ("denied", "fs__delete_all", "fs", False),
        ("unknown", "fs__nothing", None, True),
    ]
    assert [summary.arguments for summary in summaries] == [
        Raw(arguments),
        Raw(arguments),
        None,
        None,
    ]


@pytest.mark.parametrize("allows", [True, False])
async def test_arguments_that_make_a_condition_slow_are_denied_at_once_and_recorded(
    allows: bool,
) -> None:
    slow = Rule(allows, ("fs__*",), "policy[0]", condition=Condition("args.path.contains(args.q)"))
    fallback = Rule(True, ("*",), "policy[1]")
    async with governed(Policy((slow, fallback)), fs=files()) as gateway:
        dev, summaries = GovernedClient(gateway, DEV), record_calls(gateway)
        arguments = {"path": "a" * 500_000, "q": "a" * 250_000 + "b"}
        _, why = await dev.expect_error("tools/call", name="fs__read", arguments=arguments)
        assert why == (
            "Permission denied for tool: fs__read: its arguments are too large for a rule that"
            " reads them"
        )
        assert [(each.status, each.rule) for each in summaries] == [("denied", "policy[0]")]
