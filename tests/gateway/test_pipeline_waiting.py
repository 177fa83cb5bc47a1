"""Checks that must wait: they delay only their own call, and the call is checked again after."""

import asyncio
from collections.abc import Awaitable

import pytest

from tests.gateway.governed import NO_ETC, allow, deny, files
from tests.gateway.servers import (
    Server,
    SessionClient,
    make_gateway,
    running,
    session_client,
    text_of,
    tool,
)
from tests.gateway.stateless_callers import stateless_caller
from tests.gateway.test_kill_switch import gateway_with_switches
from tests.gateway.test_pipeline import ScriptedEnforcer, record_calls
from tests.gateway.test_registry_changes import ServerTable, client_of, wait_until_replaced
from tests.tasks import hang_guard
from trunkline.gateway.call_context import CallContext
from trunkline.gateway.decision_cache import CallerCache, CallerRules, Route
from trunkline.gateway.enforcement import EnforcementChain, PolicyEnforcer
from trunkline.gateway.gateway import Gateway
from trunkline.gateway.kill_switch import KillSwitchControl
from trunkline.gateway.pipeline import CallCheck, Decision, Deferred, Denied
from trunkline.jsonrpc import Incident, Raw, RpcError
from trunkline.mcp.errors import ErrorKind, gateway_error
from trunkline.routing.catalog import CatalogEntry
from trunkline.routing.kill_switch import KillSwitch, SwitchKind
from trunkline.routing.policy import Policy
from trunkline.routing.visibility import Visibility

NOT_ALLOWED = gateway_error(ErrorKind.NOT_ALLOWED, "no")


class WaitingCheck:
    """A check that waits until the test decides."""

    def __init__(self, timeout: float | None = None) -> None:
        """With a timeout, the check defers; else it is awaited."""
        self.started = asyncio.Event()
        self.decided = asyncio.Event()
        self.decision: Decision = None
        self.error: Exception | None = None
        self.seen: list[str] = []
        self.waits_for = "a__slow"
        self._timeout = timeout

    def check(self, context: CallContext) -> Decision | Awaitable[Decision]:
        self.seen.append(context.name)
        if context.name != self.waits_for:
            return None
        waiting = self.wait()
        return waiting if self._timeout is None else Deferred(waiting, self._timeout)

    async def wait(self) -> Decision:
        self.started.set()
        await self.decided.wait()
        if self.error is not None:
            raise self.error
        return self.decision

    def decide(self, decision: Decision = None) -> None:
        self.decision = decision
        self.decided.set()


class WaitingEnforcer(ScriptedEnforcer):
    """An enforcer whose first check waits; the second one is scripted."""

    def __init__(self, first: CallCheck) -> None:
        super().__init__()
        self._first = first

    def checks_for(
        self,
        entry: CatalogEntry,
        caller_rules: object,
        *,
        wrapper: object = None,
        is_counted: bool = False,
    ) -> tuple[CallCheck, ...]:
        checks = super().checks_for(entry, caller_rules, is_counted=is_counted)
        return checks if is_counted else (self._first, *checks)


def server_of_two() -> Server:
    return Server(tools=[tool("slow"), tool("quick")])


def guarded(check: WaitingCheck) -> tuple[Server, Gateway, WaitingEnforcer]:
    """Return a gateway whose calls of `slow` wait for a check."""
    server = server_of_two()
    gateway, enforcer = make_gateway(a=server), WaitingEnforcer(check.check)
    gateway.pipeline.enforcer = enforcer
    return server, gateway, enforcer


@pytest.fixture(params=["awaited", "deferred"])
def check(request: pytest.FixtureRequest) -> WaitingCheck:
    return WaitingCheck(None if request.param == "awaited" else 60.0)


async def start_slow(client: SessionClient, check: WaitingCheck) -> "asyncio.Task[object]":
    """Call `slow`, and return when its check waits."""
    calling = asyncio.create_task(client.call("a__slow"))
    await check.started.wait()
    return calling


async def test_a_check_that_waits_delays_only_its_own_call(check: WaitingCheck) -> None:
    server, gateway, enforcer = guarded(check)
    async with hang_guard(), running(gateway, server), session_client(gateway) as client:
        slow = await start_slow(client, check)
        for _ in range(3):
            assert text_of(await client.call("a__quick")) == "quick ran"
        assert (slow.done(), server.count("tools/call")) == (False, 3)
        assert len(gateway.pipeline.in_flight) == 1
        check.decide()
        assert text_of(await slow) == "slow ran"
    assert gateway.pipeline.in_flight == set()
    assert enforcer.checked == ["a__quick"] * 3 + ["a__slow"]  # nothing changed: no second check
    assert check.seen.count("a__slow") == 1


async def test_a_check_that_waits_may_deny_with_an_error(check: WaitingCheck) -> None:
    server, gateway, enforcer = guarded(check)
    summaries = record_calls(gateway)
    async with hang_guard(), running(gateway, server), session_client(gateway) as client:
        slow = await start_slow(client, check)
        check.decide(Denied(NOT_ALLOWED))
        with pytest.raises(RpcError, match="no"):
            await slow
    assert (server.count("tools/call"), enforcer.checked) == (0, [])
    assert [summary.status for summary in summaries] == ["denied"]
    assert gateway.pipeline.in_flight == set()


async def test_a_check_that_waits_may_answer_instead_of_the_server(check: WaitingCheck) -> None:
    server, gateway, _ = guarded(check)
    summaries = record_calls(gateway)
    async with hang_guard(), running(gateway, server):
        client = await stateless_caller(gateway)
        slow = asyncio.create_task(client.call("a__slow"))
        await check.started.wait()
        answer = Raw(b'{"content":[{"type":"text","text":"ask later"}],"isError":true}')
        check.decide(Denied(result=answer))
        assert text_of(await slow) == "ask later"
    assert server.count("tools/call") == 0
    assert [summary.status for summary in summaries] == ["tool_error"]


async def test_a_check_may_defer_several_times(check: WaitingCheck) -> None:
    server, gateway, _ = guarded(check)
    second = WaitingCheck()
    async with hang_guard(), running(gateway, server), session_client(gateway) as client:
        slow = await start_slow(client, check)
        check.decide(Deferred(second.wait(), 60.0))
        await second.started.wait()
        assert not slow.done()
        second.decide()
        assert text_of(await slow) == "slow ran"


@pytest.mark.parametrize("deferred", [False, True])
async def test_a_check_that_does_not_decide_in_time_denies(deferred: bool) -> None:
    check = WaitingCheck(0.01 if deferred else None)
    server, gateway, enforcer = guarded(check)
    if not deferred:
        gateway.pipeline.check_timeout = 0.01
    async with hang_guard(), running(gateway, server), session_client(gateway) as client:
        with pytest.raises(RpcError, match=r"not allowed within 0\.01 s"):
            await client.call("a__slow")
    assert (server.count("tools/call"), enforcer.checked) == (0, [])


@pytest.mark.parametrize(
    "error", [RpcError(-32099, "broken"), OSError("the store is down"), TimeoutError("the store")]
)
async def test_a_check_that_fails_denies(check: WaitingCheck, error: Exception) -> None:
    server, gateway, _ = guarded(check)
    check.error = error
    async with hang_guard(), running(gateway, server), session_client(gateway) as client:
        slow = await start_slow(client, check)
        check.decide()
        with pytest.raises(RpcError) as failed:
            await slow
    assert failed.value.code == (error.code if isinstance(error, RpcError) else -32603)
    assert "store" not in str(failed.value)
    assert server.count("tools/call") == 0
    assert gateway.pipeline.in_flight == set()


async def test_a_later_check_may_refuse_a_call_that_waited(check: WaitingCheck) -> None:
    server, gateway, enforcer = guarded(check)
    enforcer.error = NOT_ALLOWED
    async with hang_guard(), running(gateway, server), session_client(gateway) as client:
        slow = await start_slow(client, check)
        check.decide()
        with pytest.raises(RpcError, match="no"):
            await slow
    assert (server.count("tools/call"), enforcer.releases) == (0, 1)


async def test_a_client_may_cancel_a_call_that_waits(check: WaitingCheck) -> None:
    server, gateway, _ = guarded(check)
    summaries = record_calls(gateway)
    async with hang_guard(), running(gateway, server):
        client = await stateless_caller(gateway)
        slow = asyncio.create_task(client.call("a__slow"))
        await check.started.wait()
        slow.cancel()
        await asyncio.gather(slow, return_exceptions=True)
        assert gateway.pipeline.in_flight == set()
    assert [summary.status for summary in summaries] == ["cancelled"]
    assert server.count("tools/call") == 0


async def test_a_kill_switch_stops_a_call_that_waits(check: WaitingCheck) -> None:
    server = server_of_two()
    async with (
        hang_guard(),
        gateway_with_switches(a=server) as (gateway, switches),
        session_client(gateway) as client,
    ):
        gateway.pipeline.enforcer = WaitingChain(check, switches)
        slow = await start_slow(client, check)
        await switches.kill(KillSwitch(SwitchKind.TOOL, "a__slow"))
        with pytest.raises(RpcError, match="Tool is disabled: a__slow"):
            await slow
        assert gateway.pipeline.in_flight == set()
    assert server.count("tools/call") == 0


class WaitingChain(EnforcementChain):
    """The kill switches, after a check that waits."""

    def __init__(self, check: WaitingCheck, switches: KillSwitchControl) -> None:
        super().__init__(kill_switches=switches)
        self._check = check

    def checks_for(
        self,
        entry: CatalogEntry,
        caller_rules: CallerCache[CallerRules],
        *,
        wrapper: Route | None = None,
        is_counted: bool = False,
    ) -> tuple[CallCheck, ...]:
        checks = super().checks_for(entry, caller_rules, is_counted=is_counted)
        return (self._check.check, *checks)


async def test_a_call_that_waited_is_unknown_if_its_tool_was_hidden_meanwhile(
    check: WaitingCheck,
) -> None:
    server, gateway, _ = guarded(check)
    async with hang_guard(), running(gateway, server), session_client(gateway) as client:
        slow = await start_slow(client, check)
        gateway.registry.set_visibility(Visibility(policy=PolicyEnforcer(Policy([deny()]))))
        check.decide()
        with pytest.raises(RpcError, match="Unknown tool: a__slow"):
            await slow
    assert server.count("tools/call") == 0


@pytest.mark.parametrize("answers", [False, True])
async def test_a_call_that_waited_is_checked_again_if_something_changed_meanwhile(
    check: WaitingCheck, answers: bool
) -> None:
    server, gateway, enforcer = guarded(check)
    async with hang_guard(), running(gateway, server):
        client = await stateless_caller(gateway)
        slow = asyncio.create_task(client.call("a__slow"))
        await check.started.wait()
        gateway.registry.decisions.invalidate()
        gateway.registry.decisions.invalidate()
        if answers:
            gateway.pipeline.enforcer = ChecksEveryCall(answer_again)
        check.decide()
        if answers:
            assert text_of(await slow) == "bad arguments"
        else:
            assert text_of(await slow) == "slow ran"
            assert enforcer.checked == ["a__slow", "again: a__slow"]
    assert server.count("tools/call") == (not answers)


def answer_again(_: CallContext) -> Denied:
    return Denied(result=Raw(b'{"content":[{"type":"text","text":"bad arguments"}]}'))


class ChecksEveryCall(ScriptedEnforcer):
    """An enforcer with one check, which it repeats for calls that have waited."""

    def __init__(self, check: CallCheck) -> None:
        super().__init__()
        self._one_check = check

    def checks_for(
        self,
        entry: CatalogEntry,
        caller_rules: object,
        *,
        wrapper: object = None,
        is_counted: bool = False,
    ) -> tuple[CallCheck, ...]:
        return (self._one_check,)


async def test_a_call_that_waited_waits_again_for_the_check_of_a_new_configuration(
    check: WaitingCheck,
) -> None:
    server, gateway, _ = guarded(check)
    second = WaitingCheck(60.0)
    async with hang_guard(), running(gateway, server), session_client(gateway) as client:
        slow = await start_slow(client, check)
        gateway.pipeline.enforcer = ChecksEveryCall(second.check)
        check.decide()
        await second.started.wait()
        assert (slow.done(), server.count("tools/call")) == (False, 0)
        second.decide(Denied(NOT_ALLOWED))
        with pytest.raises(RpcError, match="no"):
            await slow
    assert server.count("tools/call") == 0
    assert gateway.pipeline.in_flight == set()


async def test_a_call_that_waited_is_denied_by_a_new_rule_about_its_arguments(
    check: WaitingCheck,
) -> None:
    server = files()
    gateway = make_gateway(fs=server)
    open_policy = PolicyEnforcer(Policy([allow()]))
    gateway.pipeline.enforcer = PolicyAfter(check, open_policy)
    check.waits_for = "fs__read"
    async with hang_guard(), running(gateway, server), session_client(gateway) as client:
        calling = asyncio.create_task(client.call("fs__read", arguments={"path": "/etc/x"}))
        await check.started.wait()
        strict = PolicyEnforcer(Policy([deny(condition=NO_ETC), allow()]))
        gateway.pipeline.enforcer = EnforcementChain(strict)
        check.decide()
        with pytest.raises(RpcError, match="Permission denied"):
            await calling
    assert server.count("tools/call") == 0


class PolicyAfter(EnforcementChain):
    """A policy, after a check that waits."""

    def __init__(self, check: WaitingCheck, policy: PolicyEnforcer) -> None:
        super().__init__(policy)
        self._check = check

    def checks_for(
        self,
        entry: CatalogEntry,
        caller_rules: CallerCache[CallerRules],
        *,
        wrapper: Route | None = None,
        is_counted: bool = False,
    ) -> tuple[CallCheck, ...]:
        checks = super().checks_for(entry, caller_rules, is_counted=is_counted)
        return (self._check.check, *checks)


async def test_a_call_that_waited_goes_to_the_server_that_replaced_its_own(
    check: WaitingCheck,
) -> None:
    old, new = server_of_two(), server_of_two()
    table = ServerTable(a=old)
    async with client_of(table) as client:
        table.gateway.pipeline.enforcer = WaitingEnforcer(check.check)
        slow = await start_slow(client, check)
        table.put("a", new)
        table.apply("a")
        await wait_until_replaced(table.gateway, "a")
        check.decide()
        assert text_of(await slow) == "slow ran"
    assert (old.count("tools/call"), new.count("tools/call")) == (0, 1)


async def test_a_call_that_waited_is_unknown_if_its_server_was_removed(
    check: WaitingCheck,
) -> None:
    table = ServerTable(a=server_of_two())
    async with client_of(table) as client:
        table.gateway.pipeline.enforcer = WaitingEnforcer(check.check)
        slow = await start_slow(client, check)
        table.apply(removed=("a",))
        check.decide()
        with pytest.raises(RpcError, match="No tools available"):
            await slow


async def test_a_finish_hook_that_fails_is_reported_and_the_client_gets_its_answer() -> None:
    server, incidents = server_of_two(), list[Incident]()
    gateway = make_gateway(a=server)
    gateway.pipeline.events = type(gateway.pipeline.events)(incidents.append)
    finished: list[str] = []
    failures = [asyncio.CancelledError(), ValueError("broken")]

    def fail(*_: object) -> None:
        raise failures[len(finished)]

    def finish(context: CallContext, *_: object) -> None:
        finished.append(context.name)

    def register(context: CallContext) -> None:
        context.on_finish += (fail, finish)

    gateway.pipeline.admission_check = register
    async with running(gateway, server), session_client(gateway) as client:
        for _ in failures:
            assert text_of(await client.call("a__quick")) == "quick ran"
        assert gateway.registry.snapshots()[0].in_flight == 0
    assert finished == ["a__quick"] * 2
    assert [incident.error for incident in incidents] == failures
