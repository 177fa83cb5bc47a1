"""Opening children: a server that a command starts is asked which era it belongs to.

    start ──> Channel ──> server/discover, initialize ──> an answer that decides
                └──────────────────────────────> ChannelLink ──> EnvelopeRemote or Remote

Refuses to decide what to ask, and what an answer means: see `inquiry` and `probe`.

Rules upheld here:
1. Nothing that was asked is ever withdrawn: not the probe, and not `initialize`.
2. The answer that decides is the last that is read here: what comes after it is the backend's.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from trunkline.backends.envelope import EnvelopeRemote
from trunkline.backends.link import ChannelLink, Link
from trunkline.backends.open_server import Introduction, Wanted, open_channel
from trunkline.backends.remote import Remote
from trunkline.backends.verdicts import Memory
from trunkline.gateway.backend import Backend
from trunkline.jsonrpc import (
    Called,
    Channel,
    ConnectionLost,
    Due,
    Event,
    Failed,
    Notified,
    Peer,
    Raw,
    RemoteProtocolError,
    Returned,
    RpcError,
    Violated,
    to_raw,
)
from trunkline.mcp.caller import Caller
from trunkline.mcp.discover import read_discovery
from trunkline.mcp.envelope import stamp
from trunkline.mcp.handshake import hello, read_welcome
from trunkline.mcp.inquiry import Inquiry, Step
from trunkline.mcp.meta import Params
from trunkline.mcp.principal import Principal
from trunkline.mcp.probe import Verdict, judge_discovery, judge_error, judge_refusal
from trunkline.mcp.versions import LATEST_HANDSHAKE, V2026_07_28, Era


class ChildTarget:
    """A server that a command starts, opened as often as it takes."""

    def __init__(
        self,
        start: Callable[[], Awaitable[Channel]],
        wanted: Wanted,
        memory: Memory | None = None,
    ) -> None:
        self._start = start
        self._wanted: Wanted = wanted
        self._memory = memory or Memory()

    async def open(self, said: Introduction) -> Backend:
        """Start it, and open it; raises RpcError, ValueError or ConnectionLost."""
        if self._wanted != "auto":
            return await open_channel(await self._start(), Era(self._wanted), said)
        try:
            inquiry = Inquiry(await self._memory.recall())
            backend = await self._find_out(inquiry, said)
        except BaseException:  # a cancellation as well: one that hangs may not be what it was
            self._memory.doubt()
            raise
        if isinstance(backend, EnvelopeRemote):
            self._memory.learn(Era.ENVELOPE, backend.server, conclusive=True)
        else:
            self._memory.learn(Era.HANDSHAKE, backend.server, inquiry.conclusive)
        return backend

    async def _find_out(self, inquiry: Inquiry, said: Introduction) -> EnvelopeRemote | Remote:
        """Ask until an answer decides, and go on from there."""
        talk = _Talk(await self._start(), said)
        try:
            while (step := inquiry.next()) is not Step.FAIL:
                if step is Step.START_AGAIN:
                    await talk.aclose()
                    talk = _Talk(await self._start(), said)
                    continue
                decided = None
                try:
                    if step is Step.WAIT:
                        decided = await talk.hear(inquiry)
                    else:
                        await talk.ask(step)
                except ConnectionLost as why:
                    talk.failures.setdefault(Step.INITIALIZE, why)
                    inquiry.ended()
                if decided is not None:
                    return await talk.settle(decided)
            raise talk.failures[inquiry.blame]
        except BaseException:
            await talk.aclose()
            raise


class _Decided(NamedTuple):
    step: Step
    result: Raw


class _Talk:
    """What is said to a child, and heard of it, until an answer decides."""

    def __init__(self, channel: Channel, said: Introduction) -> None:
        self.failures: dict[Step, Exception] = {}
        self._channel = channel
        self._said = said
        self._peer = Peer(said.name, said.remapper, answer_violations=False)
        self._remote = Remote(said.listener)  # whatever it is, it may have something to say
        self._asked: dict[int, Step] = {}
        self._receiving: asyncio.Task[list[Event]] | None = None

    async def ask(self, step: Step) -> None:
        """Ask one of the two questions; raises ConnectionLost."""
        said = self._said
        if step is Step.DISCOVER:
            params = Params(to_raw({}))
            stamp(params, Caller(Principal(""), V2026_07_28, {}, to_raw(said.client)))
            asked = params.encode()
        else:
            asked = to_raw(hello(LATEST_HANDSHAKE, said.capabilities, said.client))
        self._asked[self._peer.call(step, asked)] = step
        await self._flush()

    async def hear(self, inquiry: Inquiry) -> _Decided | None:
        """Wait for an answer, and return it if it decides; raises ConnectionLost."""
        loop = asyncio.get_running_loop()
        patience = inquiry.patience
        until = None if patience is None else loop.time() + patience
        answer: Returned | Failed | None = None
        while answer is None:
            receiving = self._receiving = self._receiving or loop.create_task(self._receive())
            left = None if until is None else until - loop.time()
            if left is not None and left <= 0:
                inquiry.silent()  # and still listened to: it may chatter, or say nothing at all
                return None
            await asyncio.wait({receiving}, timeout=left)
            if not receiving.done():
                continue
            self._receiving = None
            for event in receiving.result():
                if isinstance(event, Returned | Failed):
                    answer = event  # the only one: batches are refused
                else:
                    await self._take(event)
            await self._flush()
        return self._judge(answer, inquiry)

    async def _receive(self) -> list[Event]:
        try:
            payload = await self._channel.receive()
        except RemoteProtocolError as violation:
            return self._peer.accuse(violation)
        except OSError as why:
            raise ConnectionLost(str(why)) from why
        if payload is None:
            raise ConnectionLost("it ended before it said which revision it speaks")
        return self._peer.receive(payload)

    async def _take(self, event: Event) -> None:
        """Take note of what the child says of its own accord."""
        if isinstance(event, Notified):
            noted = self._remote.notified(event.notification)
            if noted is not None:
                await noted
        elif isinstance(event, Violated):
            self._remote.violated(event.violation)
        elif isinstance(event, Called):
            if event.request.method == "ping":
                self._peer.answer(event, {})
            else:  # nobody may ask anything else before the beginning
                self._peer.fail(event, RpcError.method_not_found(event.request.method))

    def _judge(self, answer: Returned | Failed, inquiry: Inquiry) -> _Decided | None:
        """Return an answer if it decides; if not, have it taken note of."""
        step = self._asked[answer.id]
        try:
            return _Decided(step, _expect_decision(step, answer))
        except (RpcError, ValueError) as why:
            self.failures[step] = why
            error = why if isinstance(why, RpcError) else None
            if step is Step.INITIALIZE:
                inquiry.refused(judge_refusal(error) if error else Verdict.HANDSHAKE)
            else:
                inquiry.discovered(judge_error(error) if error else Verdict.HANDSHAKE)
        return None

    async def _flush(self) -> None:
        while (payload := self._peer.outgoing()) is not None:
            await self._channel.send(payload)

    async def settle(self, decided: _Decided) -> EnvelopeRemote | Remote:
        """Go on in the way that was decided."""
        step, answer = decided
        said = self._said
        self._peer.close()
        if step is Step.INITIALIZE:
            remote = self._remote
            link = ChannelLink(self._channel, said.name, said.remapper, remote, said.report)
            await remote.open(_Answered(link, answer), said.capabilities, said.client)
            return remote
        modern = EnvelopeRemote(said.listener, said.client, by_http=False)
        link = ChannelLink(self._channel, said.name, said.remapper, modern, said.report)
        await modern.open(_Answered(link, answer))
        return modern

    async def aclose(self) -> None:
        """End it, and the child with it."""
        self._peer.close()
        if self._receiving is not None:
            self._receiving.cancel()
        await self._channel.aclose()
        if self._receiving is not None:
            await asyncio.gather(self._receiving, return_exceptions=True)


class _Answered:
    """A Link to a server that has answered the first question already."""

    has_streams = False

    def __init__(self, link: Link, answer: Raw) -> None:
        self._link = link
        self._answer = answer
        self.call: Callable[..., Due] = self._call_first
        self.notify, self.cancel, self.opened = link.notify, link.cancel, link.opened
        self.wait_ended, self.aclose = link.wait_ended, link.aclose

    def _call_first(self, *_: object, **__: object) -> Due:
        self.call = self._link.call  # from here on it is not even a detour
        return Due.settled(self._answer)


def _expect_decision(step: Step, answer: Returned | Failed) -> Raw:
    """Return a result that decides; raises RpcError or ValueError for any other answer."""
    if isinstance(answer, Failed):
        raise answer.error
    if step is Step.INITIALIZE:
        read_welcome(answer.result)
    elif judge_discovery(read_discovery(answer.result)) is not Verdict.ENVELOPE:
        raise ValueError(f"expected {V2026_07_28!r} among its versions")
    return answer.result
