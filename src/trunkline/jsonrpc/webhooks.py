"""Webhooks: notifications that are POSTed to a receiver, signed as Standard Webhooks describes.

    sender:    notification, id, time, keys ──> sign_webhook ──> headers of the POST
               status of the answer ──> classify_status ──> delivered, retry, or stop
    receiver:  headers, body, time ──> WebhookVerifier ──> WebhookMessage, or WebhookRejected

Nothing here sends, waits or reads a clock: `http/webhooks.py` does. The signature covers the id,
the time and the body, so none of them can be changed or taken from another delivery.

Invariants:
1. A message is accepted only if one of the keys signed exactly its id, time and body.
2. A message is accepted only within the tolerance around its time, and once for each id.
3. The memory of accepted ids is bounded. It exceeds its limit only by messages that are handled at
   the same time. An id is forgotten only if a copy of its delivery would be too old. While there is
   room, later attempts with the same id are recognised, too.
"""

import hmac
from base64 import b64decode, b64encode
from binascii import Error as InvalidBase64
from collections.abc import Mapping, Sequence
from enum import Enum
from hashlib import sha256
from typing import NamedTuple

from msgspec import Struct

from trunkline.jsonrpc.codec import decode
from trunkline.jsonrpc.errors import RemoteProtocolError
from trunkline.jsonrpc.message import Notification

ID_HEADER = "webhook-id"
TIMESTAMP_HEADER = "webhook-timestamp"
SIGNATURE_HEADER = "webhook-signature"

KEY_PREFIX = "whsec_"
MIN_KEY_BYTES, MAX_KEY_BYTES = 24, 64

TOLERANCE = 300.0
"""How many seconds the time of a message may differ from the clock of the receiver."""

MAX_REMEMBERED_IDS = 10_000

_VERSION = "v1"
_MAX_ID_CHARS = 256
_MAX_SIGNATURES = 16
_MAX_TIMESTAMP_DIGITS = 12

_GONE = 410
_REQUEST_TIMEOUT, _TOO_EARLY, _TOO_MANY_REQUESTS = 408, 425, 429


def parse_webhook_key(text: str) -> bytes:
    """Return the key in `whsec_…` (the prefix is optional); raises ValueError."""
    try:
        key = b64decode(text.strip().removeprefix(KEY_PREFIX), validate=True)
    except (InvalidBase64, ValueError):
        raise ValueError(f"expected {KEY_PREFIX} and base64") from None
    if not MIN_KEY_BYTES <= len(key) <= MAX_KEY_BYTES:
        raise ValueError(f"expected {MIN_KEY_BYTES} to {MAX_KEY_BYTES} bytes, got {len(key)}")
    return key


def format_webhook_key(key: bytes) -> str:
    """Return a key as text, with its prefix."""
    return KEY_PREFIX + b64encode(key).decode()


def sign_webhook(
    id: str, timestamp: int, body: bytes, keys: Sequence[bytes]
) -> tuple[tuple[str, str], ...]:
    """Return the three headers of a delivery, with one signature for each key.

    To rotate keys, sign with the new and the old one until all receivers know the new one.
    """
    signatures = " ".join(f"{_VERSION},{_signature(id, timestamp, body, key)}" for key in keys)
    return (ID_HEADER, id), (TIMESTAMP_HEADER, str(timestamp)), (SIGNATURE_HEADER, signatures)


def _signature(id: str, timestamp: int, body: bytes, key: bytes) -> str:
    signed = b"%b.%d.%b" % (id.encode(), timestamp, body)
    return b64encode(hmac.digest(key, signed, sha256)).decode()


class WebhookRejected(Exception):
    """A delivery that is not accepted; the text says why and may be sent to its sender."""


class WebhookRepeated(WebhookRejected):
    """A delivery whose id was accepted before: it needs no second handling, only an answer."""


class WebhookOverload(WebhookRejected):
    """A delivery for which there is no room: its sender should try again."""


class WebhookMessage(NamedTuple):
    """A delivery whose signature, time and body are valid."""

    id: str
    timestamp: int
    notification: Notification


class WebhookVerifier:
    """Accepts signed deliveries, each id once.

    Ask `verify`, handle the notification, then `accept` its id. A sender that gets no answer sends
    the delivery again. If handling fails, do not accept the id, and the next attempt is handled.
    """

    def __init__(
        self,
        keys: Sequence[bytes],
        tolerance: float = TOLERANCE,
        max_ids: int = MAX_REMEMBERED_IDS,
    ) -> None:
        """Create it for messages that any of `keys` signed."""
        self._keys = tuple(keys)
        self._tolerance = tolerance
        self._max_ids = max_ids
        # The ids that were accepted, oldest first, each with the timestamp of its delivery.
        self._accepted: dict[str, int] = {}

    def verify(self, headers: Mapping[str, str], body: bytes, now: float) -> WebhookMessage:
        """Return the message of a delivery; raises WebhookRejected.

        `headers` have names in lower case. `now` is the time in seconds since 1970.
        """
        id, timestamp, signatures = _read_headers(headers)
        if not self._is_signed(id, timestamp, body, signatures):
            raise WebhookRejected("no signature matches the id, the timestamp and the body")
        if abs(now - timestamp) > self._tolerance:
            raise WebhookRejected(
                f"the timestamp is more than {self._tolerance:g} s from this clock"
            )
        if id in self._accepted:
            raise WebhookRepeated(f"{id} was received before")
        if self._is_full and self._needs_oldest(now):
            raise WebhookOverload("too many messages at once; try again later")
        return WebhookMessage(id, timestamp, _read_notification(body))

    def accept(self, message: WebhookMessage, now: float) -> None:
        """Remember that a message was handled."""
        if self._is_full and not self._needs_oldest(now):
            del self._accepted[next(iter(self._accepted))]
        self._accepted[message.id] = message.timestamp

    @property
    def _is_full(self) -> bool:
        return len(self._accepted) >= self._max_ids

    def _needs_oldest(self, now: float) -> bool:
        """Return whether a copy of the oldest delivery would be accepted if it were forgotten."""
        return next(iter(self._accepted.values())) + self._tolerance >= now

    def _is_signed(self, id: str, timestamp: int, body: bytes, signatures: list[str]) -> bool:
        expected = [_signature(id, timestamp, body, key) for key in self._keys]
        # Compare all pairs: the time taken must not say which key or signature came close.
        return any(
            [hmac.compare_digest(own, given) for own in expected for given in signatures]  # noqa: C419
        )


def _read_headers(headers: Mapping[str, str]) -> tuple[str, int, list[str]]:
    """Return id, timestamp and signatures; raises WebhookRejected."""
    for name in (ID_HEADER, TIMESTAMP_HEADER, SIGNATURE_HEADER):
        if not headers.get(name):
            raise WebhookRejected(f"the header {name} is missing")
    id, timestamp = headers[ID_HEADER], headers[TIMESTAMP_HEADER]
    if len(id) > _MAX_ID_CHARS or not id.isascii() or not id.isprintable():
        raise WebhookRejected(f"{ID_HEADER}: expected at most {_MAX_ID_CHARS} printable characters")
    if not (timestamp.isascii() and timestamp.isdigit()) or len(timestamp) > _MAX_TIMESTAMP_DIGITS:
        raise WebhookRejected(f"{TIMESTAMP_HEADER}: expected seconds since 1970")
    if timestamp != str(int(timestamp)):
        raise WebhookRejected(f"{TIMESTAMP_HEADER}: expected a number without leading zeros")
    # Signatures of other versions are for other receivers.
    pairs = [each.partition(",") for each in headers[SIGNATURE_HEADER].split(" ")]
    signatures = [value for version, _, value in pairs if version == _VERSION and value.isascii()]
    return id, int(timestamp), signatures[:_MAX_SIGNATURES]


def _read_notification(body: bytes) -> Notification:
    try:
        message = decode(body)
    except RemoteProtocolError as error:
        raise WebhookRejected(str(error)) from None
    if not isinstance(message, Notification):
        raise WebhookRejected("expected a JSON-RPC notification: a webhook returns no result")
    return message


# What an HTTP status means for the sender


class DeliveryOutcome(Enum):
    """What an attempt means for the sender."""

    DELIVERED = "delivered"
    RETRY = "retry"
    """The receiver may accept the message later."""
    REFUSED = "refused"
    """The receiver refuses the message. Several refusals in a row switch the target off."""
    GONE = "gone"
    """The receiver wants no more messages."""


def classify_status(status: int) -> DeliveryOutcome:
    """Return what an HTTP status means; redirects are not followed, so they are refusals."""
    if 200 <= status < 300:
        return DeliveryOutcome.DELIVERED
    if status == _GONE:
        return DeliveryOutcome.GONE
    if status >= 500 or status in {_REQUEST_TIMEOUT, _TOO_EARLY, _TOO_MANY_REQUESTS}:
        return DeliveryOutcome.RETRY
    return DeliveryOutcome.REFUSED


class RetrySchedule(Struct, frozen=True):
    """When a delivery is tried again: exponential back-off with jitter. All values in seconds."""

    first_delay: float = 1.0
    max_delay: float = 3600.0
    give_up_after: float = 86400.0
    """Counted from the first attempt."""

    def next_delay(self, attempt: int, age: float, jitter: float) -> float | None:
        """Return the delay after failed attempt number `attempt` (from 1), None to give up.

        `age` is the time since the first attempt. `jitter` is a random number from 0 to 1, and
        takes at most half of the delay away: targets that failed together are not retried together.
        """
        doubled = self.first_delay * 2.0 ** min(attempt - 1, 64)
        delay = min(doubled, self.max_delay) * (1.0 - jitter / 2.0)
        return None if age + delay > self.give_up_after else delay
