"""Calls of stateless clients whose server sends a request during the call.

    call ──> SuspendedCall, running ──(a question, and 20 ms for more)──> suspended: input_required
                  ^                                                              │
                  └──────────────── the retry brings the answers ────────────────┘

The server's call stays open meanwhile. So the tool runs once, however often the client returns.
This module does not know servers: it is given the running call and answers its questions. The
store has a record of each suspended call, and its limits. The running call, its questions and its
client stay here.

Invariants:
1. The answers of a retry go to the call that its state names, once. Nothing else resumes a call.
   The state of a stateless server returns to it only with the same call of the same principal.
2. A retry that is refused changes nothing: the client may correct it and send it again.
3. When the client does not return in time, the server is told, and the call is removed.
4. The number of suspended calls, per principal and in total, their bytes, time and rounds are
   limited.
"""

import asyncio
import secrets
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from functools import cached_property
from typing import Any, NamedTuple, TypeGuard
from weakref import WeakValueDictionary

from trunkline.gateway.request_state import RequestState, StateBinding, StateCipher, call_digest
from trunkline.gateway.settings import SuspendedCallLimits
from trunkline.gateway.stores import (
    MemorySuspendedCallStore,
    SuspendedCallRecord,
    SuspendedCallStore,
    resolve,
)
from trunkline.jsonrpc import INVALID_PARAMS, PendingResult, Raw, Request, RpcError, read_members
from trunkline.mcp.identity import Caller
from trunkline.mcp.input_required import (
    MAX_INPUT_REQUESTS,
    MAX_INPUT_ROUNDS,
    URL_ELICITATION_REQUIRED,
    RetryParams,
    put_retry,
    read_retry,
    read_url_elicitations,
    replace_state,
    write_input_required,
)
from trunkline.mcp.params import Params, decode_value
from trunkline.mcp.server_requests import (
    ELICIT,
    ServerRequest,
    is_declared,
    missing_capability_error,
    to_input_request,
    to_session_response,
    unanswered_response,
    undeclared_capability_error,
)
from trunkline.mcp.versions import LATEST_SESSION_REVISION


class SuspendedCallInfo(NamedTuple):
    """A suspended call, as shown to administrators."""

    backend: str
    principal: str
    method: str
    questions: int
    round: int
    waiting: float  # for how many seconds it has been suspended


class SuspendedCalls:
    """All calls that wait for answers of their clients."""

    def __init__(
        self,
        cipher: StateCipher,
        limits: SuspendedCallLimits | None = None,
        store: SuspendedCallStore | None = None,
    ) -> None:
        self._cipher = cipher
        self.limits = limits or SuspendedCallLimits()
        self._store = MemorySuspendedCallStore() if store is None else store
        # By id; the call that expires first comes first
        self._waiting: dict[str, SuspendedCall] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._url_completions: WeakValueDictionary[tuple[str, str], asyncio.Event] = (
            WeakValueDictionary()
        )

    def __len__(self) -> int:
        return len(self._waiting)

    def find(self, retry: RetryParams, binding: StateBinding) -> "SuspendedCall":
        """Return the call that a retry resumes.

        Raises Invalid params unless it is a valid retry of this call in its current round.
        """
        state = self._cipher.decrypt(retry.state or "", binding, self.now())
        call = self._waiting.get(state.call_id)
        if call is None or call.round != state.round:
            raise _invalid_state_error()
        return call

    def wrap_server_state(self, result: Raw, bind: Callable[[], StateBinding]) -> Raw:
        """Return a stateless server's result with its `requestState` encrypted for this caller.

        `bind` returns the binding of the call. It is called only if the result has a state.
        """

        def wrap(state: Raw) -> str:
            expires_at = self.now() + self.limits.input_timeout
            wrapped = RequestState(bind(), expires_at=expires_at, upstream_state=bytes(state))
            return self._cipher.encrypt(wrapped)

        return replace_state(result, wrap)

    def unwrap_server_state(self, params: Params, binding: StateBinding) -> None:
        """Replace an encrypted `requestState` by the server's own; raises Invalid params.

        A retry without a state stays as it is: the server gave none.
        """
        retry = read_retry(params)
        if retry is None or retry.state is None:
            return
        state = self._cipher.decrypt(retry.state, binding, self.now())
        if state.upstream_state is None:
            raise _invalid_state_error()
        put_retry(params, retry.input_responses, Raw(state.upstream_state))

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a step of a call in a task of its own."""
        self._tasks.add(task := asyncio.create_task(work))
        task.add_done_callback(self._tasks.discard)

    async def suspend(self, call: "SuspendedCall") -> str:
        """Add a call that waits for its client; return the requestState that resumes it.

        Raises RpcError if there are too many, or if the call was abandoned meanwhile.
        """
        if self._closed:
            raise RpcError.internal_error("the gateway is shutting down")
        record = call.record = call.make_record(self.now(), self.limits.input_timeout)
        call.expires_at = record.expires_at
        # Before the store answers: the end of its backend, or of the gateway, must reach the call.
        self._waiting[record.id] = call
        try:
            added = await resolve(self._store.add(record, self.limits, record.suspended_at))
        except BaseException:
            self.remove(call)
            raise
        if not added:
            self._waiting.pop(record.id, None)
            raise RpcError.internal_error("too many calls wait for answers", {"retryAfter": 1})
        if record.id not in self._waiting:
            raise RpcError.internal_error("the call was cancelled")
        if self._timer is None:
            self._schedule_expiry(call.expires_at)
        state = RequestState(record.binding, record.id, record.round, record.expires_at)
        return self._cipher.encrypt(state)

    async def take(self, call: "SuspendedCall") -> None:
        """Remove a call that continues; raises Invalid params if another retry was faster."""
        record = call.record
        if await resolve(self._store.take(record.id, record.round)) is None:
            raise _invalid_state_error()
        if self._waiting.pop(record.id, None) is None:  # it was abandoned meanwhile
            raise _invalid_state_error()

    def remove(self, call: "SuspendedCall") -> None:
        """Remove a call that ends."""
        if self._waiting.pop(call.id, None) is not None:
            self._store.remove(call.id)

    def reconfigure(self, limits: SuspendedCallLimits) -> None:
        """Change the limits; calls that are suspended expire no later than the new timeout allows.

        The call that expires first stays first.
        """
        self.limits = limits
        if self._waiting:
            latest = self.now() + limits.input_timeout
            for call in self._waiting.values():
                call.expires_at = min(call.expires_at, latest)
            self._schedule_expiry(next(iter(self._waiting.values())).expires_at)

    def abandon_backend(self, backend: str) -> None:
        """Abandon the calls to a backend that was removed."""
        for call in [c for c in self._waiting.values() if c.backend == backend]:
            call.abandon()

    def url_completion(self, backend: str, elicitation: str) -> asyncio.Event:
        """Return the event that is set when the server confirms a URL elicitation."""
        return self._url_completions.setdefault((backend, elicitation), asyncio.Event())

    def complete_url(self, backend: str, elicitation: str) -> None:
        """Note that the server confirmed a URL elicitation."""
        if (completion := self._url_completions.get((backend, elicitation))) is not None:
            completion.set()

    async def wait_url_completions(self, completions: Iterable[asyncio.Event]) -> None:
        """Wait for the server's confirmations, but not for long: some servers never send them."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self.limits.url_elicitation_timeout):
                for completion in completions:
                    await completion.wait()

    def snapshot(self) -> tuple[SuspendedCallInfo, ...]:
        """Return all suspended calls, longest first."""
        now = self.now()
        records = [call.record for call in self._waiting.values()]
        return tuple(
            SuspendedCallInfo(
                record.binding.backend,
                record.binding.principal,
                record.method,
                record.question_count,
                record.round,
                round(now - record.suspended_at, 1),
            )
            for record in records
        )

    def close(self) -> None:
        """Abandon all calls, and accept no more."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for call in list(self._waiting.values()):
            call.abandon()

    def now(self) -> float:
        """Return the loop's time in seconds."""
        return asyncio.get_running_loop().time()

    def _schedule_expiry(self, expires_at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(expires_at, self._abandon_expired)

    def _abandon_expired(self) -> None:
        self._timer = None
        now = self.now()
        for call in list(self._waiting.values()):
            if call.expires_at > now:
                self._schedule_expiry(call.expires_at)
                return
            call.abandon()


class _PendingQuestion(NamedTuple):
    question: ServerRequest
    answer: PendingResult


class SuspendedCall:
    """One call from its first request to its answer, over all retries of its client."""

    # Class-level defaults: every call of a client with input features has such an object, and few
    # are ever suspended.
    expires_at = 0.0  # when it is abandoned, while it is suspended
    record: SuspendedCallRecord  # its record in the store; unset before it is first suspended
    # The URL elicitations to confirm before the call is made again, by id
    url_completions: dict[str, asyncio.Event] | None = None
    client: Any = None  # the client of the call; None once it has the outcome
    _backend_call: PendingResult  # the running call; unset before `start`
    _client_answer: PendingResult | None = None
    _last_question = 0
    _undeclared_question: ServerRequest | None = None
    _gather_timer: asyncio.TimerHandle | None = None
    _slot_released = False

    def __init__(
        self, suspended_calls: SuspendedCalls, request: Request, caller: Caller, round: int = 0
    ) -> None:
        """Create it for a request; `round` counts the rounds the client has answered."""
        self.round = round
        # Gives the call's slot at the upstream to other calls, or takes it back
        self.adjust_limit: Callable[[int, str], None] = _ignore_limit_change
        # The backend's name and revision; both are known when the call is routed
        self.backend = ""
        self.revision = LATEST_SESSION_REVISION
        self._suspended_calls = suspended_calls
        self._request = request
        self._caller = caller
        self._pending_questions: dict[str, _PendingQuestion] = {}

    @cached_property
    def id(self) -> str:
        """The id in its states; made on demand, since most calls are never suspended."""
        return secrets.token_urlsafe(12)

    @cached_property
    def binding(self) -> StateBinding:
        """The values that a retry of this call must match."""
        return bind_state(self._request, self._caller, self.backend)

    @property
    def question_count(self) -> int:
        """How many questions wait for the client."""
        return len(self._pending_questions) + len(self.url_completions or ())

    def make_record(self, now: float, timeout: float) -> SuspendedCallRecord:
        """Return the record of the call, which waits for `timeout` seconds from now on."""
        return SuspendedCallRecord(
            id=self.id,
            binding=self.binding,
            method=self._request.method,
            round=self.round,
            question_count=self.question_count,
            size=_byte_length(self._request.params) + self._question_bytes(),
            suspended_at=now,
            expires_at=now + timeout,
        )

    def _question_bytes(self) -> int:
        return sum(_byte_length(q.params) for q, _ in self._pending_questions.values())

    @property
    def is_client_away(self) -> bool:
        """Whether no request of the client is open that could carry messages."""
        return self._client_answer is None

    def start(self, backend_call: PendingResult, client: Any = None) -> PendingResult:
        """Return what the client's request gets: the outcome, or questions first."""
        self._backend_call, self.client = backend_call, client
        client_answer = self._new_client_answer()
        backend_call.add_callback(self._on_backend_done)
        return client_answer

    async def resume(self, answers: dict[str, Raw], caller: Caller) -> PendingResult:
        """Take answers, and return what the retry gets; raises Invalid params.

        The capabilities of the retry replace those of the earlier request.
        """
        adapted = {
            key: to_session_response(self._pending_questions[key].question, answer, self.revision)
            for key, answer in answers.items()
            if key in self._pending_questions
        }
        # All answers are valid from here on: a retry that was refused above can be sent again.
        await self._suspended_calls.take(self)
        self._release_slot(False)
        self._caller = caller
        client_answer = self._new_client_answer()
        if self._backend_call.done:
            self._on_backend_done(self._backend_call)
            return client_answer
        for key, answer in adapted.items():
            # The server may have withdrawn a question while the store was asked.
            if (pending := self._pending_questions.pop(key, None)) is not None:
                pending.answer.set_result(answer)
        if self._pending_questions:
            self._schedule_questions(0.0)
        return client_answer

    async def take_url_answers(self, answers: dict[str, Raw]) -> list[asyncio.Event]:
        """Return the completions of the accepted URLs; raises RpcError if one was declined."""
        completions = self.url_completions or {}
        given = {
            key: read_members(to_session_response(ServerRequest(ELICIT), answer, self.revision))
            for key, answer in answers.items()
            if key in completions
        }
        await self._suspended_calls.take(self)
        # Removed before the check: the state is used up by any answer.
        if any(decode_value(answer["action"]) != "accept" for answer in given.values()):
            raise RpcError.internal_error("the user declined to open the URL")
        return [completions[key] for key in given]

    async def request_input(self, question: ServerRequest) -> Raw:
        """Ask the client when it can be asked; raises RpcError if it cannot, or does not answer."""
        capabilities = self._caller.capabilities
        if self._backend_call.done:  # the question arrived with the end of the call
            raise RpcError.method_not_found(question.method)
        if not is_declared(question, capabilities):
            self._undeclared_question = question
            raise undeclared_capability_error(question, capabilities)
        limits = self._suspended_calls.limits
        size = _byte_length(question.params) + self._question_bytes()
        if len(self._pending_questions) >= MAX_INPUT_REQUESTS or size > limits.max_round_bytes:
            raise RpcError.internal_error("the server's pending requests are too many or too large")
        self._last_question += 1
        key = f"{self.id[:6]}-{self._last_question}"
        answer = PendingResult()
        self._pending_questions[key] = _PendingQuestion(question, answer)
        self._schedule_questions(limits.question_delay)
        try:
            return await answer
        finally:
            self._pending_questions.pop(key, None)

    def abandon(self) -> None:
        """Decline all questions, and cancel the call at the server."""
        self._suspended_calls.remove(self)
        self._release_slot(False)
        self._decline_all()
        self._backend_call.cancel()

    def _decline_all(self) -> None:
        # Every question gets an answer: a server might wait for it forever.
        for question, answer in list(self._pending_questions.values()):
            reply = unanswered_response(question)
            if isinstance(reply, RpcError):
                answer.set_exception(reply)
            else:
                answer.set_result(reply)

    def _release_slot(self, release: bool) -> None:
        """Give up the slot at the upstream while the client is away, or take it back."""
        if release is not self._slot_released:
            self._slot_released = release
            self.adjust_limit(1 if release else -1, self._caller.principal.id)

    def _new_client_answer(self) -> PendingResult:
        self._client_answer = PendingResult(self._on_client_cancelled)
        return self._client_answer

    def _on_client_cancelled(self, client_answer: PendingResult) -> None:
        self._client_answer = None
        self._backend_call.cancel()
        client_answer.set_exception(asyncio.CancelledError())

    def _on_backend_done(self, backend_call: PendingResult) -> None:
        """Give the outcome to the client; a client that is away gets it with its retry."""
        self._release_slot(False)
        if self._pending_questions:
            self._decline_all()
        client_answer, self._client_answer = self._client_answer, None
        if client_answer is None:
            return
        self.client = None  # breaks a reference cycle, which only the garbage collector would free
        error = backend_call.error
        if error is None:
            client_answer.set_result(self._client_result(backend_call.result))
        elif self._undeclared_question is None and _requires_url(error):
            self._request_url_elicitation(error, client_answer)
        else:
            client_answer.set_exception(explain_failure(error, self._undeclared_question))

    def _client_result(self, result: Raw) -> Raw:
        if not self.revision.is_stateless:
            return result
        return self._suspended_calls.wrap_server_state(result, lambda: self.binding)

    def _request_url_elicitation(self, error: RpcError, client_answer: PendingResult) -> None:
        """Ask the client to have its user open a URL, and then to call again."""
        questions, capabilities = read_url_elicitations(error) or {}, self._caller.capabilities
        undeclared = next((q for q in questions.values() if not is_declared(q, capabilities)), None)
        if not questions or undeclared is not None:
            client_answer.set_exception(explain_failure(error, undeclared))
            return
        self.url_completions = {
            key: self._suspended_calls.url_completion(self.backend, key) for key in questions
        }
        self._suspended_calls.run(self._suspend(client_answer, questions))

    def _schedule_questions(self, seconds: float) -> None:
        if self._gather_timer is None and self._client_answer is not None:
            loop = asyncio.get_running_loop()
            self._gather_timer = loop.call_later(seconds, self._send_questions)

    def _send_questions(self) -> None:
        self._gather_timer = None
        client_answer = self._client_answer
        if client_answer is None or not self._pending_questions:
            return
        self._client_answer = None
        questions = {key: to_input_request(q) for key, (q, _) in self._pending_questions.items()}
        self._suspended_calls.run(self._suspend(client_answer, questions))

    async def _suspend(
        self, client_answer: PendingResult, questions: dict[str, ServerRequest]
    ) -> None:
        """Give the client the questions and the state that resumes the call, or an error."""
        try:
            if self.round >= MAX_INPUT_ROUNDS:
                text = f"the server asked more than {MAX_INPUT_ROUNDS} times"
                raise RpcError.internal_error(text)
            self.round += 1
            state = await self._suspended_calls.suspend(self)
        except Exception as error:
            client_answer.set_exception(error)
            self.abandon()
            return
        if client_answer.done:  # the client has disconnected meanwhile
            self._suspended_calls.remove(self)
            return
        # A client may take minutes: the slot is free for other calls meanwhile.
        self._release_slot(not self._backend_call.done)
        client_answer.set_result(write_input_required(questions, state))


def bind_state(request: Request, caller: Caller, backend: str) -> StateBinding:
    """Return the binding of a call's states."""
    digest = call_digest(request.method, Params(request.params))
    return StateBinding(caller.principal.id, backend, digest)


def explain_failure(error: BaseException, undeclared: ServerRequest | None) -> BaseException:
    """Return the client's error for a failed call in which `undeclared` could not be asked."""
    if not isinstance(error, RpcError):
        return error
    questions = read_url_elicitations(error) if undeclared is None else None
    if questions:
        undeclared = next(iter(questions.values()))
    if undeclared is not None:
        return missing_capability_error(undeclared)
    if error.code == URL_ELICITATION_REQUIRED:
        return RpcError.internal_error(error.message, {"upstreamCode": error.code})
    return error


def is_retry(params: Params) -> bool:
    """Return whether a call has the members of a retry."""
    if params.has_only_standard_members:
        return False
    return params.get("requestState") is not None or params.get("inputResponses") is not None


def _invalid_state_error() -> RpcError:
    return RpcError(INVALID_PARAMS, "Invalid or expired requestState")


def _requires_url(error: BaseException) -> TypeGuard[RpcError]:
    return isinstance(error, RpcError) and error.code == URL_ELICITATION_REQUIRED


def _byte_length(params: object) -> int:
    return len(params) if isinstance(params, Raw) else 0


def _ignore_limit_change(change: int, principal: str) -> None: ...
