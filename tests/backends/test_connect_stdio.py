"""Detecting the protocol of a child process on its pipe."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.backends.test_stateless_server import GATEWAY, Listener, until
from tests.gateway.servers import tool
from tests.tasks import HANG_TIMEOUT, LoopClock, hang_guard, stop, tidy
from trunkline.backends.connect import ClientIdentity, ProtocolSetting, StdioConnector
from trunkline.backends.era_cache import EraCache, EraFile, MemoryEraStore
from trunkline.backends.limits import BackendLimits
from trunkline.backends.session_server import SessionServer
from trunkline.backends.stateless_server import StatelessServer
from trunkline.gateway.backend import Backend
from trunkline.jsonrpc import ConnectionLost, IdRemapper, RpcError, Transport, memory_pipe
from trunkline.mcp.era_detection import ProbeTimeouts
from trunkline.mcp.negotiation import discover_result, initialize_result
from trunkline.mcp.versions import V2025_11_25

DISCOVER, INITIALIZE = "server/discover", "initialize"
SERVER = {"name": "child", "version": "1"}
MODERN = discover_result({"tools": {}}, SERVER, None)
WELCOME = initialize_result(V2025_11_25, {"tools": {}}, SERVER, None)
EXIT, SILENT = "exit", "silent"
PATIENT_TIMEOUTS = ProbeTimeouts(usual=30.0, long=30.0)
SHORT_TIMEOUTS = ProbeTimeouts(usual=0.01, long=0.03)


def error(code: int, data: Any = None) -> RpcError:
    return RpcError(code, "no", data)


NO = error(-32601)
LATE = error(-32022, {"supported": ["2026-07-28"], "requested": "2025-11-25"})
"""The answer to `initialize` of a server that already got an envelope."""


class InTurn:
    """Returns its answers in turn."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)


class Script:
    """A program with scripted answers for each run."""

    def __init__(self, **answers: Any) -> None:
        self.answers: dict[str, Any] = {
            DISCOVER: answers.pop("discover", NO),
            INITIALIZE: answers.pop("initialize", NO),
            "tools/list": {"tools": [tool("t")]},
        }
        self.before: list[bytes] = []
        self.methods: list[list[str]] = []
        self.messages: list[dict[str, Any]] = []
        self.running: list[asyncio.Task[None]] = []
        self.ids: dict[str, Any] = {}
        self.line: Transport

    async def start(self) -> Transport:
        near, self.line = memory_pipe()
        self.methods.append([])
        self.running.append(asyncio.create_task(self._run(self.line, self.methods[-1])))
        return near

    async def _run(self, line: Transport, methods: list[str]) -> None:
        for payload in self.before:
            await line.send(payload)
        while (payload := await line.receive()) is not None:
            message = json.loads(payload)
            self.messages.append(message)
            if "method" not in message:
                continue
            methods.append(message["method"])
            if "id" not in message:
                continue
            self.ids[message["method"]] = message["id"]
            answer = self.answers.get(message["method"], {})
            if isinstance(answer, InTurn):
                answer = answer.answers.pop(0)
            if answer == EXIT:
                break
            if answer != SILENT:
                await self.answer(message["method"], answer)
        await line.aclose()

    async def answer(self, method: str, answer: Any) -> None:
        """Answer the last request with this method."""
        message = {"jsonrpc": "2.0", "id": self.ids[method]}
        if isinstance(answer, RpcError):
            message["error"] = {"code": answer.code, "message": "no", "data": answer.data}
        else:
            message["result"] = answer
        await self.line.send(json.dumps(message).encode())

    async def notify(self, method: str, **more: Any) -> None:
        await self.line.send(json.dumps({"jsonrpc": "2.0", "method": method, **more}).encode())

    def has_received(self, *methods: str) -> Callable[[], bool]:
        return lambda: bool(self.methods) and self.methods[-1] == list(methods)


class Place:
    """A program, and the gateway's cached protocol."""

    def __init__(
        self, script: Script, wanted: ProtocolSetting, memory: EraCache, timeouts: ProbeTimeouts
    ) -> None:
        self.script = script
        self.remapper = IdRemapper()
        self.listener = Listener()
        self.identity = ClientIdentity("s", self.remapper, self.listener, {"roots": {}}, GATEWAY)
        limits = BackendLimits(probe_timeouts=timeouts, answer_drain_timeout=0.0)
        self.target = StdioConnector(self._start, wanted, memory, limits)

    async def _start(self) -> Transport:
        return await self.script.start()

    async def open(self) -> Backend:
        return await self.target.connect(self.identity)

    async def era(self) -> str:
        """Connect, check a call, and return the detected protocol."""
        backend = await self.open()
        assert self.remapper.pending_count() == 0  # whatever was not answered
        assert [offer.key for offer in (await backend.list_features()).features] == ["t"]
        await backend.aclose()
        assert isinstance(backend, StatelessServer | SessionServer)
        return "stateless" if isinstance(backend, StatelessServer) else "session"

    async def refusal(self) -> str:
        with pytest.raises((ConnectionLost, RpcError, ValueError)) as failed:
            await self.open()
        return str(failed.value)


@asynccontextmanager
async def running(
    script: Script,
    wanted: ProtocolSetting = "auto",
    folder: Path | None = None,
    timeouts: ProbeTimeouts = PATIENT_TIMEOUTS,
) -> AsyncGenerator[Place]:
    """Run a program behind a gateway, and check that nothing is left."""
    file = None if folder is None else EraFile(folder, flush_timeout=HANG_TIMEOUT)
    store = MemoryEraStore() if file is None else file
    place = Place(script, wanted, EraCache(store, "k"), timeouts)
    async with hang_guard():
        yield place
        await asyncio.gather(*script.running)
        if file is not None:
            await file.aclose()
    assert place.remapper.pending_count() == 0
    withdrawn = [
        message for message in script.messages if message.get("method") == "notifications/cancelled"
    ]
    assert withdrawn == []


# Answers


@tidy
async def test_a_stateless_child_gets_no_initialize() -> None:
    script = Script(discover=MODERN, initialize=LATE)
    async with running(script) as place:
        assert await place.era() == "stateless"
        assert await place.era() == "stateless"
    assert script.methods == [[DISCOVER, "tools/list"]] * 2
    for message in script.messages[:2]:  # a server may list more for clients with capabilities
        meta = message["params"]["_meta"]
        assert meta["io.modelcontextprotocol/protocolVersion"] == "2026-07-28"
        assert meta["io.modelcontextprotocol/clientInfo"] == GATEWAY
        assert meta["io.modelcontextprotocol/clientCapabilities"] == {"roots": {}}


@tidy
async def test_a_child_with_both_protocols_is_used_by_the_stateless_one() -> None:
    script = Script(discover=MODERN, initialize=WELCOME)
    async with running(script) as place:
        assert await place.era() == "stateless"


@tidy
@pytest.mark.parametrize(
    "answer",
    [
        *(error(code) for code in (-32601, -32602, -32600, -32000, -32603, 7)),
        error(-32022, {"supported": ["2025-06-18"]}),
        error(-32022),
        MODERN | {"supportedVersions": ["2025-11-25"]},
        {},
        [1],
        {"supportedVersions": 7},
    ],
)
async def test_a_child_without_the_stateless_protocol_gets_initialize_on_the_same_pipe(
    answer: Any,
) -> None:
    script = Script(discover=answer, initialize=WELCOME)
    async with running(script) as place:
        assert await place.era() == "session"
        assert await place.era() == "session"  # which is remembered
    opened = [INITIALIZE, "notifications/initialized", "tools/list"]
    assert script.methods == [[DISCOVER, *opened], opened]
    (hello,) = [s for s in script.messages[:2] if s["method"] == INITIALIZE]
    assert hello["params"]["protocolVersion"] == "2025-11-25"
    assert hello["params"]["capabilities"] == {"roots": {}}
    assert "_meta" not in hello["params"]


@tidy
@pytest.mark.parametrize(
    "code_and_data",
    [(-32020, None), (-32021, None), (-32022, {"supported": ["2099-01-01"]})],
)
async def test_a_child_with_a_configured_protocol_that_refuses_it_gets_nothing_else(
    code_and_data: tuple[int, Any],
) -> None:
    script = Script(discover=error(*code_and_data), initialize=WELCOME)
    async with running(script) as place:
        assert str(code_and_data[0]) in await place.refusal()
    assert script.methods == [[DISCOVER]]


@tidy
async def test_a_child_that_refuses_both_fails_with_the_initialize_error() -> None:
    script = Script(initialize=error(-32000))
    async with running(script) as place:
        assert "-32000" in await place.refusal()
    script = Script(initialize=WELCOME | {"protocolVersion": "1999-01-01"})
    async with running(script) as place:
        assert "'1999-01-01'" in await place.refusal()


@tidy
@pytest.mark.parametrize("wanted", ["session", "stateless"])
async def test_a_configured_protocol_is_not_probed(wanted: ProtocolSetting, tmp_path: Path) -> None:
    script = Script(discover=MODERN, initialize=WELCOME)
    async with running(script, wanted, tmp_path) as place:
        assert await place.era() == wanted
    assert script.methods[0][0] == (INITIALIZE if wanted == "session" else DISCOVER)
    script = Script()
    async with running(script, wanted, tmp_path) as place:
        await place.refusal()
    assert len(script.methods[0]) == 1
    assert list(tmp_path.iterdir()) == []


# Silence


async def let_probe_expire(script: Script, clock: LoopClock) -> None:
    """Let the probe, which the server does not answer, time out, and wait for `initialize`."""
    await until(script.has_received(DISCOVER))
    await clock.advance(PATIENT_TIMEOUTS.usual)
    await until(script.has_received(DISCOVER, INITIALIZE))


@tidy
@pytest.mark.holds("T104")
async def test_a_silent_child_is_usable_soon_and_not_written_to_the_file(
    tmp_path: Path,
) -> None:
    LoopClock().skip_idle_time()
    script = Script(discover=SILENT, initialize=WELCOME)
    for _ in range(2):
        async with running(script, folder=tmp_path, timeouts=SHORT_TIMEOUTS) as place:
            assert await place.era() == "session"
            assert await place.era() == "session"
    opened = [INITIALIZE, "notifications/initialized", "tools/list"]
    assert script.methods == [[DISCOVER, *opened], opened] * 2
    assert list(tmp_path.iterdir()) == []


@tidy
@pytest.mark.holds("T104")
async def test_a_silent_child_delays_no_other_server() -> None:
    silent = Script(discover=SILENT, initialize=WELCOME)
    async with running(silent) as place, running(Script(discover=MODERN)) as other:
        opening = asyncio.create_task(place.open())
        await until(silent.has_received(DISCOVER))
        assert await other.era() == "stateless"
        assert not opening.done()
        await stop(opening)


@tidy
@pytest.mark.parametrize("modern", [True, False])
async def test_a_slow_starting_childs_answer_to_the_probe_counts(
    modern: bool, tmp_path: Path
) -> None:
    clock, script = LoopClock(), Script(discover=SILENT, initialize=SILENT)
    async with running(script, folder=tmp_path) as place:
        opening = asyncio.create_task(place.open())
        await let_probe_expire(script, clock)
        assert not opening.done()
        # The server reads and answers one message after the other.
        await script.answer(DISCOVER, MODERN if modern else NO)
        await script.answer(INITIALIZE, LATE if modern else WELCOME)
        backend = await opening
        assert isinstance(backend, StatelessServer if modern else SessionServer)
        assert len((await backend.list_features()).features) == 1
        await backend.aclose()
    assert (tmp_path / "eras.json").exists()


@tidy
async def test_a_late_discovery_counts_although_initialize_was_refused() -> None:
    clock, script = LoopClock(), Script(discover=SILENT, initialize=LATE)
    async with running(script) as place:
        opening = asyncio.create_task(place.open())
        await let_probe_expire(script, clock)
        await script.answer(DISCOVER, MODERN)
        backend = await opening
        assert isinstance(backend, StatelessServer)
        await backend.aclose()


@tidy
async def test_a_child_that_stays_silent_and_refuses_fails_at_its_timeout() -> None:
    LoopClock().skip_idle_time()
    script = Script(discover=SILENT, initialize=error(-32603))
    async with running(script, timeouts=SHORT_TIMEOUTS) as place:
        assert "-32603" in await place.refusal()
    assert script.methods == [[DISCOVER, INITIALIZE]]


@tidy
async def test_messages_after_initialization_change_nothing() -> None:
    LoopClock().skip_idle_time()
    script = Script(discover=SILENT, initialize=WELCOME)
    async with running(script, timeouts=SHORT_TIMEOUTS) as place:
        backend = await place.open()
        await script.answer(DISCOVER, MODERN)
        assert len((await backend.list_features()).features) == 1
        assert isinstance(backend, SessionServer)
        await backend.aclose()


@tidy
async def test_a_child_that_turns_out_to_be_stateless_is_probed_once_more() -> None:
    script = Script(discover=InTurn(NO, MODERN), initialize=LATE)
    async with running(script) as place:
        assert await place.era() == "stateless"
    assert script.methods == [[DISCOVER, INITIALIZE, DISCOVER, "tools/list"]]


@tidy
@pytest.mark.parametrize("protocol", ["auto", "stateless"])
async def test_a_child_that_refuses_a_version_it_supports_is_asked_again_at_once(
    protocol: ProtocolSetting,
) -> None:
    script = Script(discover=InTurn(LATE, MODERN), initialize=WELCOME)
    async with running(script, protocol) as place:
        assert await place.era() == "stateless"
    assert script.methods == [[DISCOVER, DISCOVER, "tools/list"]]


# Ends


@tidy
@pytest.mark.holds("T105")
async def test_a_child_that_exits_on_the_probe_is_restarted_and_gets_initialize(
    tmp_path: Path,
) -> None:
    script = Script(discover=EXIT, initialize=WELCOME)
    opened = [INITIALIZE, "notifications/initialized", "tools/list"]
    async with running(script, folder=tmp_path) as place:
        assert await place.era() == "session"
    async with running(script, folder=tmp_path) as place:
        assert await place.era() == "session"  # and is not made to exit again
    assert script.methods == [[DISCOVER], opened, opened]


@tidy
@pytest.mark.holds("T105")
async def test_a_child_that_refuses_and_then_exits_is_restarted_too() -> None:
    script = Script(discover=NO, initialize=InTurn(EXIT, WELCOME))
    async with running(script) as place:
        assert await place.era() == "session"
    assert [methods[0] for methods in script.methods] == [DISCOVER, INITIALIZE]


@tidy
async def test_a_child_that_always_exits_is_started_twice(tmp_path: Path) -> None:
    script = Script(discover=EXIT, initialize=EXIT)
    async with running(script, folder=tmp_path) as place:
        assert (
            await place.refusal()
            == "the server ended before it answered with its protocol revision"
        )
    assert script.methods == [[DISCOVER], [INITIALIZE]]
    assert list(tmp_path.iterdir()) == []


@tidy
async def test_a_child_that_cannot_be_restarted_fails_with_the_reason() -> None:
    script = Script(discover=EXIT)

    async def start() -> Transport:
        if script.methods:
            raise ConnectionLost("no such program")
        return await script.start()

    async with running(script) as place:
        place.target = StdioConnector(start, "auto")
        assert await place.refusal() == "no such program"


@tidy
@pytest.mark.parametrize("probe_expires", [False, True])
async def test_a_cancelled_detection_leaves_no_child(probe_expires: bool) -> None:
    clock, script = LoopClock(), Script(discover=SILENT, initialize=SILENT)
    async with running(script) as place:
        opening = asyncio.create_task(place.open())
        await until(script.has_received(DISCOVER))
        if probe_expires:
            await let_probe_expire(script, clock)
        await stop(opening)


# Other messages


@tidy
async def test_messages_before_the_answer_of_a_child_are_handled() -> None:
    script = Script(initialize=WELCOME)
    script.before = [
        b"Starting the server ...",
        b"[]",
        b'{"jsonrpc":"2.0","id":7,"method":"ping"}',
        b'{"jsonrpc":"2.0","id":8,"method":"roots/list"}',
        b'{"jsonrpc":"2.0","id":99,"result":{}}',
        b'{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"up"}}',
    ]
    async with running(script) as place:
        backend = await place.open()
        assert isinstance(backend, SessionServer)
        assert json.loads(bytes(backend.server_info)) == SERVER
        await backend.aclose()
        method, _ = await place.listener.notifications.get()
        assert method == "notifications/message"
    answers = {message["id"]: message for message in script.messages if "method" not in message}
    assert answers[7]["result"] == {}
    assert answers[8]["error"]["code"] == -32601


@tidy
async def test_a_child_that_prints_without_an_answer_counts_as_silent() -> None:
    script = Script(discover=SILENT, initialize=WELCOME)
    async with running(script, timeouts=SHORT_TIMEOUTS) as place:
        opening = asyncio.create_task(place.open())
        await until(lambda: bool(script.methods))
        while not opening.done():
            await script.line.send(b"still starting")
            await asyncio.sleep(0)
        backend = await opening
        assert isinstance(backend, SessionServer)
        await backend.aclose()
