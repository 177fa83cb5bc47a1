"""The admin service: the state of the gateway, ring events and kill switches."""

import asyncio

import pytest

from tests.calls import ended_call
from tests.gateway.servers import HeldAnswer, make_gateway, one_tool, running, session_client
from tests.gateway.test_kill_switch import switched
from trunkline.admin.service import (
    MAX_LINE_LENGTH,
    MAX_RECENT_LINES,
    ActiveSwitchInfo,
    AdminService,
    EventRing,
)
from trunkline.gateway.events import BackendStateChanged, GatewayEvent, KillSwitchChanged
from trunkline.gateway.gateway import Gateway
from trunkline.gateway.kill_switch import SwitchError


def admin_service(made: Gateway) -> AdminService:
    return AdminService(
        made, switched(made), mask_secrets=lambda text: text.replace("hunter22", "…")
    )


@pytest.mark.holds("O4.2")
async def test_status_reports_gateway_and_servers() -> None:
    server, broken = one_tool(), one_tool()
    broken.broken = ValueError("bad token hunter22")
    hold = server.methods["tools/call"] = HeldAnswer()
    made = make_gateway(a=server, b=broken)
    admin = admin_service(made)
    async with running(made, server, broken), session_client(made) as client:
        calling = asyncio.create_task(client.call("a__echo"))
        await hold.started.wait()
        admin.pause()
        await admin.kill("subject", "anna")
        await admin.kill("server", "b")
        state = admin.status()
        assert (state.name, state.version, state.paused) == ("test-gateway", "1.0", True)
        assert (state.sessions, state.in_flight, state.suspended) == (1, 1, 0)
        assert state.uptime >= 0
        assert state.disabled == (
            ActiveSwitchInfo("server", "b", "operator"),
            ActiveSwitchInfo("subject", "anna", "operator"),
        )
        a, b = state.servers
        assert (a.state, a.in_flight, a.features, a.error, a.disabled) == (
            "ready",
            1,
            1,
            None,
            False,
        )
        assert b.error is not None
        assert "hunter22" not in b.error
        assert b.disabled
        admin.resume()
        await admin.revive("subject", "anna")
        hold.released.set()
        await calling
        assert not admin.status().paused


async def test_command_results_have_messages() -> None:
    server = one_tool()
    hold = server.methods["tools/call"] = HeldAnswer()
    made = make_gateway(a=server)
    admin = admin_service(made)
    async with running(made, server), session_client(made) as client:
        for ended in ("1 call was cancelled", "2 calls were cancelled"):
            calls = [asyncio.create_task(client.call("a__echo")) for _ in range(int(ended[0]))]
            while len(made.pipeline.in_flight) < len(calls):
                await asyncio.sleep(0)
            result = await admin.kill("tool", "a__echo")
            assert result.message == f"tool a__echo is disabled; {ended}"
            assert result.calls_ended == len(calls)
            await asyncio.gather(*calls, return_exceptions=True)
            assert (await admin.kill("tool", "a__echo")).message.endswith("was disabled already")
            assert (await admin.revive("tool", "a__echo")).message == "tool a__echo is revived"
        hold.released.set()
    assert admin.resume().message == "the gateway was not paused"
    assert admin.pause().message == "the gateway is paused"
    assert admin.pause().message == "the gateway was paused already"
    assert admin.resume().message == "the gateway is resumed"


@pytest.mark.parametrize(("kind", "name"), [("role", "x"), ("all", "x"), ("tool", "")])
async def test_invalid_switch_is_refused(kind: str, name: str) -> None:
    admin = admin_service(make_gateway())
    for command in (admin.kill(kind, name), admin.revive(kind, name)):
        with pytest.raises(SwitchError, match="expected"):
            await command


@pytest.mark.parametrize(("lines", "shown"), [(-5, 1), (0, 1), (3, 3), (10**9, MAX_RECENT_LINES)])
def test_number_of_lines_is_bounded(lines: int, shown: int) -> None:
    made = make_gateway()
    ring = EventRing()
    made.pipeline.events.add_listener(ring.record)
    switches = switched(made)
    for _ in range(MAX_RECENT_LINES):
        switches.pause()
        switches.resume()
    logs = AdminService(made, switches, ring).logs(lines)
    assert (len(logs.lines), logs.total_available) == (shown, MAX_RECENT_LINES)


def formatted(event: GatewayEvent) -> str:
    ring = EventRing(clock=lambda: 1.0)
    ring.record(event)
    (line,) = ring.last_lines(5)
    return line


def test_call_line_has_time_subject_tool_and_outcome_but_no_arguments() -> None:
    assert (
        formatted(ended_call(at=0.0))
        == "1970-01-01T00:00:00Z ann called fs__read: success in 12 ms"
    )


def test_other_events_have_lines_with_their_time() -> None:
    stopped = KillSwitchChanged("tool", "a", True, "anna")
    assert formatted(stopped) == "1970-01-01T00:00:01Z tool a is disabled by anna"


def test_ring_is_bounded_and_lists_the_last_lines_oldest_first() -> None:
    ring = EventRing(max_lines=3)
    for number in range(5):
        ring.record(ended_call(name=f"t{number}"))
    assert len(ring) == 3
    assert [line.split()[3] for line in ring.last_lines(2)] == ["t3:", "t4:"]
    assert len(ring.last_lines(100)) == 3


def test_line_is_one_bounded_line_whatever_a_client_sends() -> None:
    line = formatted(ended_call(name="a\n\x1b[2Jb" + "x" * 10_000))
    assert "a\\x0a\\x1b[2Jb" in line
    assert line.isprintable()
    assert len(line) < 2 * MAX_LINE_LENGTH
    assert (
        len(formatted(BackendStateChanged("s", "failed", "y" * 10_000, None))) < 2 * MAX_LINE_LENGTH
    )


def test_secrets_are_masked() -> None:
    ring = EventRing(lambda text: text.replace("hunter22", "…"))
    ring.record(BackendStateChanged("fs", "failed", "bad token hunter22", None))
    assert ring.last_lines(1)[0].endswith("bad token …")


def test_password_in_an_address_is_not_kept() -> None:
    assert "of db://[redacted]@x: " in formatted(
        ended_call(method="resources/read", name="db://u:p@x")
    )
    long = formatted(ended_call(method="resources/read", name=f"db://u:{'hunter22' * 100}@x"))
    assert "hunter22" not in long


def test_secrets_are_masked_before_cutting() -> None:
    ring = EventRing(lambda text: text.replace("hunter22", "…"))
    long = "y" * (MAX_LINE_LENGTH - len("server fs is failed: ") - 4)
    ring.record(BackendStateChanged("fs", "failed", f"{long}hunter22", None))
    assert "hunt" not in ring.last_lines(1)[0]
