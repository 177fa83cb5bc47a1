"""Webhooks over HTTP: POST signed notifications to a target, and receive them.

    WebhookTarget:    notification ──> signed POST ──> answer ──> delivered | retry | refused | gone
    WebhookReceiver:  POST ──> verified ──> handler ──> 204

A target does one attempt at a time and keeps no queue: `deliver` repeats attempts while its caller
waits, and a program with a queue of its own calls `attempt`. Which bytes are signed, and what an
answer means, is in `jsonrpc/webhooks.py`.

Invariants:
1. The target connects only to addresses that its filter accepts. It does not follow redirects.
2. The receiver runs the handler for verified messages only, and once for each id that it handled.
3. The receiver answers 2xx only if the handler has finished, now or for an earlier delivery.
"""

import asyncio
import random
import time
from base64 import b32encode
from collections.abc import Awaitable, Callable, Sequence
from secrets import token_bytes
from ssl import SSLContext
from typing import NamedTuple

from trunkline.http.address import is_public_address
from trunkline.http.client import ClientLimits, HttpClient, HttpResponse
from trunkline.http.exchange import TEXT_PLAIN, HttpExchange, HttpRequest
from trunkline.jsonrpc import ConnectionLost, Notification
from trunkline.jsonrpc.errors import IncidentReporter, print_incident, report_incident
from trunkline.jsonrpc.webhooks import (
    DeliveryOutcome,
    RetrySchedule,
    WebhookMessage,
    WebhookOverload,
    WebhookRejected,
    WebhookRepeated,
    WebhookVerifier,
    classify_status,
    sign_webhook,
)

ATTEMPT_TIMEOUT = 10.0
"""How many seconds a target has to answer, connecting included."""

_MAX_ANSWER_BYTES = 16 * 1024
_CLIENT_LIMITS = ClientLimits(max_connections=1, max_body=_MAX_ANSWER_BYTES, keep_alive=20.0)
_HEADERS = ((b"content-type", b"application/json"), (b"user-agent", b"trunkline"))


def new_webhook_id() -> str:
    """Return an id for a new message; its attempts share it."""
    return "msg_" + b32encode(token_bytes(15)).decode().lower()


class WebhookAttempt(NamedTuple):
    """What came of one attempt."""

    outcome: DeliveryOutcome
    status: int | None
    """The HTTP status, None if there was no answer."""
    problem: str | None
    """Why there was no answer, or why it does not count as a delivery."""


class WebhookTarget:
    """A URL that receives signed notifications."""

    def __init__(
        self,
        url: str,
        keys: Sequence[bytes],
        *,
        timeout: float = ATTEMPT_TIMEOUT,
        allow: Callable[[str], bool] | None = is_public_address,
        tls: SSLContext | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Create it; raises ValueError for an invalid URL.

        `allow` decides to which IP addresses it connects: by default to public ones only, because
        a URL that others choose must not reach services of this network. None allows all.
        """
        self._client = HttpClient(url, _HEADERS, _CLIENT_LIMITS, tls, allow)
        self._keys = tuple(keys)
        self._timeout = timeout
        self._clock = clock

    async def attempt(self, id: str, body: bytes) -> WebhookAttempt:
        """POST a message once; a later attempt with the same id is the same message."""
        headers = tuple(
            (name.encode(), value.encode())
            for name, value in sign_webhook(id, int(self._clock()), body, self._keys)
        )
        try:
            async with asyncio.timeout(self._timeout):
                response = await self._client.request("POST", headers, body)
                await _discard_body(response)
        except TimeoutError:
            return WebhookAttempt(DeliveryOutcome.RETRY, None, f"no answer in {self._timeout:g} s")
        except ConnectionLost as error:
            return WebhookAttempt(DeliveryOutcome.RETRY, None, str(error))
        outcome = classify_status(response.status)
        problem = None if outcome is DeliveryOutcome.DELIVERED else f"status {response.status}"
        return WebhookAttempt(outcome, response.status, problem)

    async def deliver(
        self,
        notification: Notification,
        id: str | None = None,
        schedule: RetrySchedule | None = None,
    ) -> WebhookAttempt:
        """POST a notification until it is delivered or refused; return the last attempt.

        Cancelling it gives up. For order, await one delivery before the next.
        """
        id, body = id or new_webhook_id(), notification.encode()
        schedule = schedule or RetrySchedule()
        start, number = time.monotonic(), 1
        while True:
            attempt = await self.attempt(id, body)
            if attempt.outcome is not DeliveryOutcome.RETRY:
                return attempt
            age = time.monotonic() - start
            delay = schedule.next_delay(number, age, random.random())  # noqa: S311 - for jitter
            if delay is None:
                return attempt
            await asyncio.sleep(delay)
            number += 1

    async def aclose(self) -> None:
        """Close its connection; an attempt in progress ends with `retry`."""
        await self._client.aclose()


async def _discard_body(response: HttpResponse) -> None:
    """Read the body, so that the connection can be used again; close it if the body is long."""
    try:
        await response.read()
    except ConnectionLost:
        response.close()


class WebhookReceiver:
    """Handles POSTs of signed notifications: the handler of an HttpListener, or a part of one."""

    def __init__(
        self,
        verifier: WebhookVerifier,
        notified: Callable[[Notification], Awaitable[None] | None],
        *,
        clock: Callable[[], float] = time.time,
        max_in_progress: int = 64,
        report: IncidentReporter = print_incident,
    ) -> None:
        """Create it; `notified` gets the notifications, as a Handler's method does.

        If it raises, the sender tries again. A Dispatcher reports exceptions of its functions and
        does not raise them.
        """
        self._verifier = verifier
        self._notified = notified
        self._clock = clock
        self._max_in_progress = max_in_progress
        self._report = report
        self._in_progress: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def __call__(self, exchange: HttpExchange) -> None:
        """Verify a request, handle its notification, and answer."""
        request = exchange.request
        if request.method != "POST":
            exchange.respond(405, ((b"allow", b"POST"), TEXT_PLAIN), b"expected POST\n")
            return
        try:
            message = self._verify(request)
        except WebhookRepeated:
            exchange.respond(204)
        except WebhookOverload:
            _respond_busy(exchange)
        except WebhookRejected as error:
            exchange.respond(400, (TEXT_PLAIN,), f"{error}\n".encode())
        else:
            self._start(exchange, message)

    def _verify(self, request: HttpRequest) -> WebhookMessage:
        headers = {
            name.decode("latin-1"): value.decode("latin-1")
            for name, value in request.headers.items()
        }
        return self._verifier.verify(headers, request.body, self._clock())

    def _start(self, exchange: HttpExchange, message: WebhookMessage) -> None:
        if message.id in self._in_progress or len(self._in_progress) >= self._max_in_progress:
            _respond_busy(exchange)  # whether the first attempt succeeds is not known yet
            return
        self._in_progress.add(message.id)
        handling = self._handle(exchange, message)
        task = asyncio.get_running_loop().create_task(handling)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _handle(self, exchange: HttpExchange, message: WebhookMessage) -> None:
        try:
            handling = self._notified(message.notification)
            if handling is not None:
                await handling
        except Exception as error:
            incident = report_incident(error, message.notification.method, self._report)
            body = f"internal error, incident {incident.id}\n".encode()
            exchange.respond(500, (TEXT_PLAIN,), body)
        else:
            self._verifier.accept(message, self._clock())
            exchange.respond(204)
        finally:
            self._in_progress.discard(message.id)

    async def aclose(self) -> None:
        """Cancel the handlers that still run; their senders try again."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _respond_busy(exchange: HttpExchange) -> None:
    exchange.respond(503, ((b"retry-after", b"1"), TEXT_PLAIN), b"busy; try again\n")
