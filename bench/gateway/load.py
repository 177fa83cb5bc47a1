"""The load: a number of concurrent calls, each followed by the next on its response.

    Lane ──call──> gateway ──> server ──> response ──> check, record the time, next call

The first incorrect response ends the run. A call is timed from its write to the end of its
response; warm-up calls do not count.
"""

import asyncio
import gc
from time import perf_counter, process_time

import msgspec

from bench.gateway.calls import BadResponse, read
from bench.gateway.events import messages
from bench.gateway.session import Session
from bench.gateway.wire import Body, ClientProtocol

_TICK = 0.02


class Plan(msgspec.Struct, frozen=True):
    """How long to measure."""

    seconds: float = 1.0
    warm_up: float = 0.3
    longest: float = 8.0
    """The longest time for a slow contestant, until each lane has enough responses."""
    answers: int = 3
    """The minimum of responses per lane."""


class Figures(msgspec.Struct, frozen=True):
    """The results."""

    rate: float
    """Responses per second."""
    p50: float
    p99: float
    """Milliseconds."""
    calls: int
    in_all: int
    """How many calls were made, warm-up included."""
    own_share: float
    """The share of a core that the load took; near 1.0 the load was the bottleneck."""


class Lane(ClientProtocol):
    """One call in flight, again and again."""

    def __init__(self, load: "Load") -> None:
        super().__init__(self._reply, load.fail)
        self._load = load
        self._posted = False
        self._answer: bytes | None = None
        self.id = 0
        self.began = 0.0

    def call(self) -> None:
        """Make the next call."""
        self.id, request = self._load.calls.next()
        self.began = perf_counter()
        self.send(request)

    def _reply(self, status: int, body: Body) -> None:
        if status >= 300:
            self._load.fail(f"expected a result, got status {status}: {bytes(body[:300])!r}")
        elif not self._load.streamed:
            self._load.answered(self, body if body[:1] == b"{" else self._event(bytes(body)))
        elif self._answer is None:
            self._posted = True
        else:
            self._on_event(self._answer)

    def arrived(self, answer: bytes) -> None:
        """Take the response from the stream; it may arrive before the reply to the POST."""
        if self._posted:
            self._on_event(answer)
        else:
            self._answer = answer

    def _on_event(self, answer: bytes) -> None:
        self._posted, self._answer = False, None
        self._load.answered(self, answer)

    def _event(self, body: bytes) -> bytes:
        """Find the response among the events of a reply."""
        found = messages(body)
        if len(found) > 1:
            found = [payload for payload in found if read(payload).id == self.id]
        return found[0] if found else body


class Load:
    """All lanes of one measurement."""

    def __init__(self, session: Session, size: int) -> None:
        self._session = session
        self._lanes: list[Lane] = []
        self._by_id: dict[int | str | None, Lane] = {}
        self._going = True
        self._idle = 0
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.streamed = session.stream is not None
        self.calls = session.calls(size)
        self.times: list[float] = []
        if session.stream is not None:
            session.stream.listener, session.stream.lost = self._on_stream_event, self.fail

    async def start(self, concurrency: int) -> None:
        """Connect all lanes, then start all of them."""
        loop, where = asyncio.get_running_loop(), self._session.address
        for _ in range(concurrency):
            _, lane = await loop.create_connection(lambda: Lane(self), where.host, where.port)
            self._lanes.append(lane)
        for lane in self._lanes:
            self._call(lane)

    def answered(self, lane: Lane, body: Body) -> None:
        """Record the time of a call, and make the next."""
        now = perf_counter()
        try:
            self.calls.check(body, lane.id)
        except BadResponse as reason:
            self.fail(str(reason))
            return
        self.times.append(now - lane.began)
        if self._going:
            self._call(lane)
        else:
            self._idle += 1

    def fail(self, reason: str) -> None:
        """End the measurement."""
        if not self._failed.done():
            self._failed.set_exception(BadResponse(reason))

    async def run(self, least: int, seconds: float, longest: float) -> float:
        """Run that long, or longer until there are enough responses; return the seconds."""
        began = perf_counter()
        await asyncio.wait({self._failed}, timeout=seconds)
        while len(self.times) < least and perf_counter() - began < longest:
            await asyncio.wait({self._failed}, timeout=_TICK)
            if self._failed.done():
                break
        if self._failed.done():
            self._failed.result()
        if not self.times:
            raise BadResponse(f"expected an answer within {longest:g} s, got none")
        return perf_counter() - began

    async def stop(self, longest: float) -> None:
        """Wait for all responses, and disconnect."""
        self._going = False
        until = perf_counter() + longest
        while self._idle < len(self._lanes) and not self._failed.done() and perf_counter() < until:
            await asyncio.wait({self._failed}, timeout=_TICK)
        for lane in self._lanes:
            lane.close()
        if not self._failed.done():
            self._failed.cancel()

    def _call(self, lane: Lane) -> None:
        lane.call()
        if self.streamed:
            self._by_id[lane.id] = lane

    def _on_stream_event(self, data: bytes) -> None:
        lane = self._by_id.pop(read(data).id, None)
        if lane is not None:
            lane.arrived(data)


async def measure(session: Session, concurrency: int, size: int, plan: Plan) -> Figures:
    """Measure; raises BadResponse for an incorrect response."""
    load = Load(session, size)
    gc.collect()
    gc.disable()
    try:
        await load.start(concurrency)
        await load.run(concurrency, plan.warm_up, plan.longest)
        warming = len(load.times)
        load.times.clear()
        used = process_time()
        seconds = await load.run(concurrency * plan.answers, plan.seconds, plan.longest)
        used = process_time() - used
        times = sorted(load.times)
    finally:
        await load.stop(plan.longest)
        gc.enable()
    in_all = warming + len(load.times)
    return Figures(
        rate=len(times) / seconds,
        p50=times[len(times) // 2] * 1e3,
        p99=times[len(times) * 99 // 100] * 1e3,
        calls=len(times),
        in_all=in_all,
        own_share=used / seconds,
    )
