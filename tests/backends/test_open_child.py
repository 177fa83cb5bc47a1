"""Which era a child belongs to: asked on its pipe, whatever it does with the question."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.backends.test_envelope import GATEWAY, Listener, until
from tests.gateway.servers import tool
from tests.jsonrpc.test_channel import stop, tidy
from trunkline.backends.envelope import EnvelopeRemote
from trunkline.backends.open_child import ChildTarget
from trunkline.backends.open_server import Introduction, Wanted
from trunkline.backends.remote import Remote
from trunkline.backends.verdicts import Memory, Verdicts
from trunkline.gateway.backend import Backend
from trunkline.jsonrpc import Channel, ConnectionLost, IdRemapper, RpcError, pipe
from trunkline.mcp import inquiry
from trunkline.mcp.discover import discovery
from trunkline.mcp.handshake import welcome

DISCOVER, INITIALIZE = "server/discover", "initialize"
SERVER = {"name": "child", "version": "1"}
MODERN = discovery({"tools": {}}, SERVER, None)
WELCOME = welcome("2025-11-25", {"tools": {}}, SERVER, None)
EXIT, SILENT = "exit", "silent"


def error(code: int, data: Any = None) -> RpcError:
    return RpcError(code, "no", data)


NO = error(-32601)
LATE = error(-32022, {"supported": ["2026-07-28"], "requested": "2025-11-25"})
"""What a server answers to `initialize` that has been spoken to in an envelope before."""


class InTurn:
    """Another answer every time."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)


class Script:
    """A program: what it answers, all the times that it is run."""

    def __init__(self, **answers: Any) -> None:
        self.answers: dict[str, Any] = {
            DISCOVER: answers.pop("discover", NO),
            INITIALIZE: answers.pop("initialize", NO),
            "tools/list": {"tools": [tool("t")]},
        }
        self.before: list[bytes] = []
        self.heard: list[list[str]] = []
        self.said: list[dict[str, Any]] = []
        self.running: list[asyncio.Task[None]] = []
        self.ids: dict[str, Any] = {}
        self.line: Channel

    async def start(self) -> Channel:
        near, self.line = pipe()
        self.heard.append([])
        self.running.append(asyncio.create_task(self._run(self.line, self.heard[-1])))
        return near

    async def _run(self, line: Channel, heard: list[str]) -> None:
        for payload in self.before:
            await line.send(payload)
        while (payload := await line.receive()) is not None:
            said = json.loads(payload)
            self.said.append(said)
            if "method" not in said:
                continue
            heard.append(said["method"])
            if "id" not in said:
                continue
            self.ids[said["method"]] = said["id"]
            answer = self.answers.get(said["method"], {})
            if isinstance(answer, InTurn):
                answer = answer.answers.pop(0)
            if answer == EXIT:
                break
            if answer != SILENT:
                await self.answer(said["method"], answer)
        await line.aclose()

    async def answer(self, method: str, answer: Any) -> None:
        """Answer what was asked last by this method."""
        message = {"jsonrpc": "2.0", "id": self.ids[method]}
        if isinstance(answer, RpcError):
            message["error"] = {"code": answer.code, "message": "no", "data": answer.data}
        else:
            message["result"] = answer
        await self.line.send(json.dumps(message).encode())

    async def tell(self, method: str, **more: Any) -> None:
        await self.line.send(json.dumps({"jsonrpc": "2.0", "method": method, **more}).encode())

    def has_heard(self, *methods: str) -> Callable[[], bool]:
        return lambda: bool(self.heard) and self.heard[-1] == list(methods)


class Place:
    """A program, and what a gateway knows of it."""

    def __init__(self, script: Script, wanted: Wanted, memory: Memory) -> None:
        self.script = script
        self.remapper = IdRemapper()
        self.ear = Listener()
        self.said = Introduction("s", self.remapper, self.ear, {"roots": {}}, GATEWAY)
        self.target = ChildTarget(self._start, wanted, memory)

    async def _start(self) -> Channel:
        return await self.script.start()

    async def open(self) -> Backend:
        return await self.target.open(self.said)

    async def era(self) -> str:
        """Open it, see that it works, and return what it was taken for."""
        backend = await self.open()
        assert self.remapper.pending_count() == 0  # whatever was not answered
        assert [offer.key for offer in await backend.offers()] == ["t"]
        await backend.aclose()
        assert isinstance(backend, EnvelopeRemote | Remote)
        return "envelope" if isinstance(backend, EnvelopeRemote) else "handshake"

    async def refusal(self) -> str:
        with pytest.raises((ConnectionLost, RpcError, ValueError)) as failed:
            await self.open()
        return str(failed.value)


@asynccontextmanager
async def running(
    script: Script, wanted: Wanted = "auto", folder: Path | None = None
) -> AsyncGenerator[Place]:
    """Put a program behind a gateway for a moment; leave nothing behind."""
    verdicts = Verdicts(folder)
    place = Place(script, wanted, Memory(verdicts, "k"))
    async with asyncio.timeout(10):
        yield place
        await asyncio.gather(*script.running)
        await verdicts.aclose()
    assert place.remapper.pending_count() == 0
    withdrawn = [said for said in script.said if said.get("method") == "notifications/cancelled"]
    assert withdrawn == []


@pytest.fixture
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inquiry, "PATIENCE", 0.01)
    monkeypatch.setattr(inquiry, "LONG_PATIENCE", 0.03)


# What it answers


@tidy
async def test_a_child_of_the_envelope_era_is_not_asked_to_shake_hands() -> None:
    script = Script(discover=MODERN, initialize=LATE)
    async with running(script) as place:
        assert await place.era() == "envelope"
        assert await place.era() == "envelope"
    assert script.heard == [[DISCOVER, "tools/list"]] * 2
    meta = script.said[0]["params"]["_meta"]
    assert meta["io.modelcontextprotocol/protocolVersion"] == "2026-07-28"
    assert meta["io.modelcontextprotocol/clientInfo"] == GATEWAY
    assert meta["io.modelcontextprotocol/clientCapabilities"] == {}


@tidy
async def test_a_child_that_speaks_both_ways_is_spoken_to_in_envelopes() -> None:
    script = Script(discover=MODERN, initialize=WELCOME)
    async with running(script) as place:
        assert await place.era() == "envelope"


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
async def test_a_child_that_does_not_know_the_envelope_shakes_hands_on_the_same_pipe(
    answer: Any,
) -> None:
    script = Script(discover=answer, initialize=WELCOME)
    async with running(script) as place:
        assert await place.era() == "handshake"
        assert await place.era() == "handshake"  # which is remembered
    opened = [INITIALIZE, "notifications/initialized", "tools/list"]
    assert script.heard == [[DISCOVER, *opened], opened]
    (hello,) = [s for s in script.said[:2] if s["method"] == INITIALIZE]
    assert hello["params"]["protocolVersion"] == "2025-11-25"
    assert hello["params"]["capabilities"] == {"roots": {}}
    assert "_meta" not in hello["params"]


@tidy
@pytest.mark.parametrize(
    "code_and_data",
    [(-32020, None), (-32021, None), (-32022, {"supported": ["2099-01-01"]})],
)
async def test_a_child_that_belongs_to_an_era_and_refuses_it_is_not_asked_anything_else(
    code_and_data: tuple[int, Any],
) -> None:
    script = Script(discover=error(*code_and_data), initialize=WELCOME)
    async with running(script) as place:
        assert str(code_and_data[0]) in await place.refusal()
    assert script.heard == [[DISCOVER]]


@tidy
async def test_a_child_that_refuses_both_says_why_it_does_not_shake_hands() -> None:
    script = Script(initialize=error(-32000))
    async with running(script) as place:
        assert "-32000" in await place.refusal()
    script = Script(initialize=welcome("1999-01-01", {}, SERVER, None))
    async with running(script) as place:
        assert "'1999-01-01'" in await place.refusal()


@tidy
@pytest.mark.parametrize("wanted", ["handshake", "envelope"])
async def test_what_the_configuration_says_is_not_doubted(wanted: Wanted, tmp_path: Path) -> None:
    script = Script(discover=MODERN, initialize=WELCOME)
    async with running(script, wanted, tmp_path) as place:
        assert await place.era() == wanted
    assert script.heard[0][0] == (INITIALIZE if wanted == "handshake" else DISCOVER)
    script = Script()
    async with running(script, wanted, tmp_path) as place:
        await place.refusal()
    assert len(script.heard[0]) == 1
    assert list(tmp_path.iterdir()) == []


# Silence


@tidy
@pytest.mark.usefixtures("no_patience")
@pytest.mark.holds("T104")
async def test_a_silent_child_is_usable_soon_and_its_silence_is_not_written(
    tmp_path: Path,
) -> None:
    script = Script(discover=SILENT, initialize=WELCOME)
    for _ in range(2):
        async with running(script, folder=tmp_path) as place:
            assert await place.era() == "handshake"
            assert await place.era() == "handshake"
    opened = [INITIALIZE, "notifications/initialized", "tools/list"]
    assert script.heard == [[DISCOVER, *opened], opened] * 2
    assert list(tmp_path.iterdir()) == []


@tidy
@pytest.mark.holds("T104")
async def test_a_silent_child_keeps_nobody_else_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inquiry, "PATIENCE", 60.0)
    silent = Script(discover=SILENT, initialize=WELCOME)
    async with running(silent) as place, running(Script(discover=MODERN)) as other:
        opening = asyncio.create_task(place.open())
        await until(silent.has_heard(DISCOVER))
        assert await other.era() == "envelope"
        assert not opening.done()
        await stop(opening)


@tidy
@pytest.mark.usefixtures("no_patience")
@pytest.mark.parametrize("modern", [True, False])
async def test_what_a_child_that_was_still_starting_says_to_the_probe_counts(
    modern: bool, tmp_path: Path
) -> None:
    script = Script(discover=SILENT, initialize=SILENT)
    async with running(script, folder=tmp_path) as place:
        opening = asyncio.create_task(place.open())
        await until(script.has_heard(DISCOVER, INITIALIZE))
        assert not opening.done()
        # It reads one after the other, and answers likewise.
        await script.answer(DISCOVER, MODERN if modern else NO)
        await script.answer(INITIALIZE, LATE if modern else WELCOME)
        backend = await opening
        assert isinstance(backend, EnvelopeRemote if modern else Remote)
        assert len(await backend.offers()) == 1
        await backend.aclose()
    assert (tmp_path / "eras.json").exists()


@tidy
@pytest.mark.usefixtures("no_patience")
async def test_a_late_discovery_counts_although_the_handshake_was_refused() -> None:
    script = Script(discover=SILENT, initialize=LATE)
    async with running(script) as place:
        opening = asyncio.create_task(place.open())
        await until(script.has_heard(DISCOVER, INITIALIZE))
        await script.answer(DISCOVER, MODERN)
        backend = await opening
        assert isinstance(backend, EnvelopeRemote)
        await backend.aclose()


@tidy
@pytest.mark.usefixtures("no_patience")
async def test_a_child_that_is_silent_and_refuses_is_given_up_after_a_while() -> None:
    script = Script(discover=SILENT, initialize=error(-32603))
    async with running(script) as place:
        assert "-32603" in await place.refusal()
    assert script.heard == [[DISCOVER, INITIALIZE]]


@tidy
@pytest.mark.usefixtures("no_patience")
async def test_what_comes_later_than_the_welcome_changes_nothing() -> None:
    script = Script(discover=SILENT, initialize=WELCOME)
    async with running(script) as place:
        backend = await place.open()
        await script.answer(DISCOVER, MODERN)
        assert len(await backend.offers()) == 1
        assert isinstance(backend, Remote)
        await backend.aclose()


@tidy
async def test_a_child_that_turns_out_to_be_modern_is_asked_once_more() -> None:
    script = Script(discover=InTurn(NO, MODERN), initialize=LATE)
    async with running(script) as place:
        assert await place.era() == "envelope"
    assert script.heard == [[DISCOVER, INITIALIZE, DISCOVER, "tools/list"]]


# Ends


@tidy
@pytest.mark.holds("T105")
async def test_a_child_that_exits_when_it_is_probed_is_started_again_and_shakes_hands(
    tmp_path: Path,
) -> None:
    script = Script(discover=EXIT, initialize=WELCOME)
    opened = [INITIALIZE, "notifications/initialized", "tools/list"]
    async with running(script, folder=tmp_path) as place:
        assert await place.era() == "handshake"
    async with running(script, folder=tmp_path) as place:
        assert await place.era() == "handshake"  # and is not made to exit again
    assert script.heard == [[DISCOVER], opened, opened]


@tidy
@pytest.mark.holds("T105")
async def test_a_child_that_refuses_first_and_exits_then_is_started_again_too() -> None:
    script = Script(discover=NO, initialize=InTurn(EXIT, WELCOME))
    async with running(script) as place:
        assert await place.era() == "handshake"
    assert [heard[0] for heard in script.heard] == [DISCOVER, INITIALIZE]


@tidy
async def test_a_child_that_always_exits_is_started_twice_and_no_more(tmp_path: Path) -> None:
    script = Script(discover=EXIT, initialize=EXIT)
    async with running(script, folder=tmp_path) as place:
        assert await place.refusal() == "it ended before it said which revision it speaks"
    assert script.heard == [[DISCOVER], [INITIALIZE]]
    assert list(tmp_path.iterdir()) == []


@tidy
async def test_a_child_that_cannot_be_started_again_says_so() -> None:
    script = Script(discover=EXIT)

    async def start() -> Channel:
        if script.heard:
            raise ConnectionLost("no such program")
        return await script.start()

    async with running(script) as place:
        place.target = ChildTarget(start, "auto")
        assert await place.refusal() == "no such program"


@tidy
@pytest.mark.parametrize("heard", [[DISCOVER], [DISCOVER, INITIALIZE]])
async def test_who_gives_up_meanwhile_leaves_no_child(
    heard: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inquiry, "PATIENCE", 60.0 if len(heard) == 1 else 0.01)
    script = Script(discover=SILENT, initialize=SILENT)
    async with running(script) as place:
        opening = asyncio.create_task(place.open())
        await until(script.has_heard(*heard))
        await stop(opening)


# What else it says


@tidy
async def test_what_a_child_says_before_it_answers_is_heard() -> None:
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
        assert isinstance(backend, Remote)
        assert json.loads(bytes(backend.server)) == SERVER
        await backend.aclose()
        told, _ = await place.ear.told_of.get()
        assert told == "notifications/message"
    answers = {said["id"]: said for said in script.said if "method" not in said}
    assert answers[7]["result"] == {}
    assert answers[8]["error"]["code"] == -32601


@tidy
@pytest.mark.usefixtures("no_patience")
async def test_a_child_that_chatters_without_an_answer_is_as_good_as_silent() -> None:
    script = Script(discover=SILENT, initialize=WELCOME)
    async with running(script) as place:
        opening = asyncio.create_task(place.open())
        await until(lambda: bool(script.heard))
        while not opening.done():
            await script.line.send(b"still starting")
            await asyncio.sleep(0)
        backend = await opening
        assert isinstance(backend, Remote)
        await backend.aclose()
