"""Parking: calls of the envelope era whose servers ask something on their way.

    call ──> Exchange, running ──(a question, and a moment for others)──> parked: input_required
                 ^                                                              │
                 └─────────────── the retry brings the answers ─────────────────┘

The server's call stays open all the while, so the tool runs once, however often the client comes
back. Refuses to know servers: it is given what is being done, and answers what is asked.

Rules upheld here:
1. What a retry brings goes to the exchange that its seal names, once; nothing else moves anything.
2. A retry that cannot be taken as it is changes nothing: it may be sent again, mended.
3. Whoever does not come back in time has given up: the server is told so, and nothing is left.
4. How many are parked, for whom, for how long and how often is bounded.
"""

import asyncio
import secrets
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cached_property
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from trunkline.gateway.sealing import Binding, Facts, Seal, digest
from trunkline.jsonrpc import INVALID_PARAMS, Due, Raw, Request, RpcError, members
from trunkline.mcp.caller import Caller
from trunkline.mcp.meta import Params, peek
from trunkline.mcp.questions import (
    ELICIT,
    Question,
    answer_for_handshake,
    for_envelope,
    is_declared,
    missing_capability,
    refused,
    undeclared,
)
from trunkline.mcp.rounds import MAX_QUESTIONS, MAX_ROUNDS, URL_REQUIRED, Retry, url_required
from trunkline.mcp.rounds import write_required as write

GATHER = 0.02
"""How long, in seconds, further questions are waited for before the client is asked."""

MAX_BYTES = 4 * 1024 * 1024
"""How much may be asked in one round, in bytes."""


VISIT = 20.0
"""How long, in seconds, a call waits for a server to say that an address was visited."""


class Limits(NamedTuple):
    """How much is parked, and for how long."""

    ttl: float = 600.0
    """How many seconds a client may take to answer."""
    most: int = 10_000
    most_each: int = 2_000
    """How many calls of one principal may be parked."""
    most_bytes: int = 256 * 1024 * 1024
    """How much all of them may have been called with, and be asked."""


class ParkedCall(NamedTuple):
    """A call that waits for its client, for those who operate the gateway."""

    backend: str
    principal: str
    method: str
    questions: int
    round: int
    waiting: float
    """For how many seconds."""


class Parking:
    """All exchanges whose clients are away."""

    def __init__(self, seal: Seal, limits: Limits | None = None) -> None:
        self._seal = seal
        self.limits = limits or Limits()
        self._parked: dict[str, Exchange] = {}
        """By id; those whose time is up first come first."""
        self._each: Counter[str] = Counter()
        self._bytes = 0
        self._closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._visits: WeakValueDictionary[tuple[str, str], asyncio.Event] = WeakValueDictionary()

    def __len__(self) -> int:
        return len(self._parked)

    def find(self, retry: Retry, binding: Binding) -> "Exchange":
        """Return the exchange that a retry is for.

        Raises Invalid params for all that is not the very retry that was asked for.
        """
        facts = self._seal.open(retry.state or "", binding, self.now())
        exchange = self._parked.get(facts.exchange)
        if exchange is None or exchange.round != facts.round:
            raise RpcError(INVALID_PARAMS, "Invalid or expired requestState")
        return exchange

    def seal(self, exchange: "Exchange") -> str:
        """Return what a client has to bring back."""
        until = self.now() + self.limits.ttl
        return self._seal.seal(Facts(exchange.binding, exchange.id, exchange.round, until))

    def park(self, exchange: "Exchange") -> None:
        """Let an exchange wait for its client; raises RpcError if there are too many."""
        if self._closed:
            raise RpcError.internal_error("the gateway ends")
        principal, limits = exchange.binding.principal, self.limits
        exchange.size = exchange.weigh()
        many = len(self) >= limits.most or self._each[principal] >= limits.most_each
        if many or self._bytes + exchange.size > limits.most_bytes:
            raise RpcError.internal_error("too many calls wait for answers", {"retryAfter": 1})
        self._parked[exchange.id] = exchange
        self._each[principal] += 1
        self._bytes += exchange.size
        exchange.since = self.now()
        exchange.until = exchange.since + self.limits.ttl
        if self._timer is None:
            self._watch(exchange.until)

    def leave(self, exchange: "Exchange") -> None:
        """Let an exchange go on."""
        if self._parked.pop(exchange.id, None) is not None:
            self._bytes -= exchange.size
            principal = exchange.binding.principal
            self._each[principal] -= 1
            if not self._each[principal]:
                del self._each[principal]

    def adopt(self, limits: Limits) -> None:
        """Have other limits from now on; what waits keeps its place, but not for longer than they.

        What was parked for longer than new ones are comes first as before.
        """
        self.limits = limits
        if self._parked:
            latest = self.now() + limits.ttl
            for exchange in self._parked.values():
                exchange.until = min(exchange.until, latest)
            self._watch(next(iter(self._parked.values())).until)

    def abandon(self, backend: str) -> None:
        """Give up what waits for a backend that nobody can reach any more."""
        for exchange in [e for e in self._parked.values() if e.backend == backend]:
            exchange.give_up()

    def visit(self, backend: str, elicitation: str) -> asyncio.Event:
        """Return what tells that a user has done what a server wants to be done at some address."""
        return self._visits.setdefault((backend, elicitation), asyncio.Event())

    def visited(self, backend: str, elicitation: str) -> None:
        """Learn that a user has done so."""
        if (visit := self._visits.get((backend, elicitation))) is not None:
            visit.set()

    async def wait_visited(self, visits: Iterable[asyncio.Event]) -> None:
        """Wait until a server says that it was done, but not for long: some never say so."""
        with suppress(TimeoutError):
            async with asyncio.timeout(VISIT):
                for visit in visits:
                    await visit.wait()

    def snapshot(self) -> tuple[ParkedCall, ...]:
        """Return what waits, longest first."""
        now = self.now()
        return tuple(
            ParkedCall(
                exchange.binding.backend,
                exchange.binding.principal,
                exchange.method,
                exchange.questions,
                exchange.round,
                round(now - exchange.since, 1),
            )
            for exchange in self._parked.values()
        )

    def close(self) -> None:
        """Give up all that waits, and let nobody wait any more."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for exchange in list(self._parked.values()):
            exchange.give_up()

    def now(self) -> float:
        """Return the time, in seconds."""
        return asyncio.get_running_loop().time()

    def _watch(self, until: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(until, self._check)

    def _check(self) -> None:
        self._timer = None
        now = self.now()
        for exchange in list(self._parked.values()):
            if exchange.until > now:
                self._watch(exchange.until)
                return
            exchange.give_up()


class _Asked(NamedTuple):
    question: Question
    answer: Due


class Exchange:
    """One call, from its first request to its answer, whoever is waiting for what meanwhile."""

    # What few of them ever set begins here: many calls of the envelope era are one.
    since = until = 0.0
    size = 0
    """From when until when it is parked, and how much is held for it, in bytes."""
    visits: dict[str, asyncio.Event] | None = None
    """What its user is to visit before the call is made anew, by elicitation id."""
    client: Any = None
    """Whoever the call is for, for those who bring answers; nobody once it has the outcome."""
    _doing: Due
    """What is done for it; nothing before it has begun."""
    _waiting: Due | None = None
    _last = 0
    _missing: Question | None = None
    _gathering: asyncio.TimerHandle | None = None
    _aside = False

    def __init__(self, parking: Parking, request: Request, caller: Caller, round: int = 0) -> None:
        """Begin; `round` is how often its client has been asked before."""
        self.round = round
        self.lend: Callable[[int], None] = _keep
        """Gives places at the server to others, or takes them back."""
        self.backend = self.version = ""
        """What the server is called, and what it speaks; both are known when it is found."""
        self._parking = parking
        self._request = request
        self._caller = caller
        self._asked: dict[str, _Asked] = {}

    @cached_property
    def id(self) -> str:
        """What its seals name it by; most have none, so it is made up when it is needed."""
        return secrets.token_urlsafe(12)

    @cached_property
    def binding(self) -> Binding:
        """The one call that a retry of it must be."""
        return bind(self._request, self._caller, self.backend)

    @property
    def method(self) -> str:
        """What was called."""
        return self._request.method

    @property
    def questions(self) -> int:
        """How many questions wait for the client."""
        return len(self._asked) + len(self.visits or ())

    def weigh(self) -> int:
        """Return how much is held for it, in bytes."""
        return _length(self._request.params) + sum(
            _length(q.params) for q, _ in self._asked.values()
        )

    @property
    def away(self) -> bool:
        """Tell whether nobody is there to be told anything."""
        return self._waiting is None

    def begin(self, doing: Due, client: Any = None) -> Due:
        """Return what the client gets: the outcome of what is being done, or questions first."""
        self._doing, self.client = doing, client
        waiting = self._wait()
        doing.then(self._done)
        return waiting

    def resume(self, answers: dict[str, Raw], caller: Caller) -> Due:
        """Take answers, and return what the client gets next; raises Invalid params.

        The client can from now on be asked what it declares with them.
        """
        fitted = {
            key: answer_for_handshake(self._asked[key].question, answer, self.version)
            for key, answer in answers.items()
            if key in self._asked
        }
        self._parking.leave(self)
        self._step_aside(False)
        self._caller = caller
        waiting = self._wait()
        if self._doing.done:
            self._done(self._doing)
            return waiting
        for key, answer in fitted.items():
            self._asked.pop(key).answer.settle(answer)
        if self._asked:
            self._surface_soon(0.0)
        return waiting

    def take_visits(self, answers: dict[str, Raw]) -> list[asyncio.Event]:
        """Return what the user is said to have visited; raises RpcError if it was refused."""
        visits = self.visits or {}
        given = {
            key: members(answer_for_handshake(Question(ELICIT), answer, self.version))
            for key, answer in answers.items()
            if key in visits
        }
        self._parking.leave(self)
        if any(peek(answer["action"]) != "accept" for answer in given.values()):
            raise RpcError.internal_error("the user does not want to visit the address")
        return [visits[key] for key in given]

    async def ask(self, question: Question) -> Raw:
        """Ask the client when it can be asked; raises RpcError if it cannot, or does not answer."""
        can = self._caller.capabilities
        if self._doing.done:  # it came with the end of the call
            raise RpcError.method_not_found(question.method)
        if not is_declared(question, can):
            self._missing = question
            raise undeclared(question, can)
        size = _length(question.params) + sum(_length(q.params) for q, _ in self._asked.values())
        if len(self._asked) >= MAX_QUESTIONS or size > MAX_BYTES:
            raise RpcError.internal_error("too much is asked at once")
        self._last += 1
        key = f"{self.id[:6]}-{self._last}"
        answer = Due()
        self._asked[key] = _Asked(question, answer)
        self._surface_soon(GATHER)
        try:
            return await answer
        finally:
            self._asked.pop(key, None)

    def give_up(self) -> None:
        """Tell the server that nobody will answer, and that nobody waits for it."""
        self._parking.leave(self)
        self._step_aside(False)
        self._refuse_all()
        self._doing.cancel()

    def _refuse_all(self) -> None:
        """Tell the server that nobody will answer what it asked: it may wait for ever else."""
        for question, answer in list(self._asked.values()):
            reply = refused(question)
            if isinstance(reply, RpcError):
                answer.fail(reply)
            else:
                answer.settle(reply)

    def _step_aside(self, aside: bool) -> None:
        """Leave the place at the server to others while the client is away."""
        if aside is not self._aside:
            self._aside = aside
            self.lend(1 if aside else -1)

    def _wait(self) -> Due:
        self._waiting = Due(self._gone)
        return self._waiting

    def _gone(self, waiting: Due) -> None:
        """Stop it all, since the client does not want to know any more."""
        self._waiting = None
        self._doing.cancel()
        waiting.fail(asyncio.CancelledError())

    def _done(self, doing: Due) -> None:
        """Give the client the outcome; one that is away gets it when it comes back."""
        self._step_aside(False)
        if self._asked:
            self._refuse_all()
        waiting, self._waiting = self._waiting, None
        if waiting is None:
            return
        self.client = None  # which has this exchange: both would wait for the collector
        why = doing.error
        if why is None:
            waiting.settle(doing.result)
        elif isinstance(why, RpcError) and why.code == URL_REQUIRED and self._missing is None:
            self._send_elsewhere(why, waiting)
        else:
            waiting.fail(explain(why, self._missing))

    def _send_elsewhere(self, why: RpcError, waiting: Due) -> None:
        """Ask the client to have its user visit some address, and then to call again."""
        questions, can = url_required(why) or {}, self._caller.capabilities
        undeclared = next((q for q in questions.values() if not is_declared(q, can)), None)
        if not questions or undeclared is not None:
            waiting.fail(explain(why, undeclared))
            return
        self.visits = {key: self._parking.visit(self.backend, key) for key in questions}
        self._park(waiting, questions)

    def _surface_soon(self, seconds: float) -> None:
        if self._gathering is None and self._waiting is not None:
            loop = asyncio.get_running_loop()
            self._gathering = loop.call_later(seconds, self._surface)

    def _surface(self) -> None:
        """Ask the client all that is asked by now."""
        self._gathering = None
        waiting = self._waiting
        if waiting is None or not self._asked:
            return
        self._waiting = None
        self._park(waiting, {key: for_envelope(q) for key, (q, _) in self._asked.items()})

    def _park(self, waiting: Due, questions: dict[str, Question]) -> None:
        try:
            if self.round >= MAX_ROUNDS:
                raise RpcError.internal_error(f"the server asked more than {MAX_ROUNDS} times")
            self._parking.park(self)
        except RpcError as why:
            waiting.fail(why)
            self.give_up()
            return
        self._step_aside(not self._doing.done)
        self.round += 1
        waiting.settle(write(questions, self._parking.seal(self)))


def bind(request: Request, caller: Caller, backend: str) -> Binding:
    """Return what a seal for a call is bound to."""
    return Binding(caller.principal.id, backend, digest(request.method, Params(request.params)))


def explain(why: BaseException, missing: Question | None) -> BaseException:
    """Return what a client gets whose call has failed, and `missing` could not be asked."""
    if not isinstance(why, RpcError):
        return why
    questions = url_required(why) if missing is None else None
    if questions:
        missing = next(iter(questions.values()))
    if missing is not None:
        return missing_capability(missing)
    if why.code == URL_REQUIRED:
        return RpcError.internal_error(why.message, {"upstreamCode": why.code})
    return why


def is_retry(params: Params) -> bool:
    """Tell whether a call says that it was made before."""
    if params.usual:
        return False
    return params.get("requestState") is not None or params.get("inputResponses") is not None


def _length(params: object) -> int:
    return len(params) if isinstance(params, Raw) else 0


def _keep(places: int) -> None:
    """Lend nothing."""
