"""Signed webhooks: signing, verification, retries."""

from base64 import b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.jsonrpc import Notification
from trunkline.jsonrpc.webhooks import (
    ID_HEADER,
    SIGNATURE_HEADER,
    TIMESTAMP_HEADER,
    DeliveryOutcome,
    RetrySchedule,
    WebhookOverload,
    WebhookRejected,
    WebhookRepeated,
    WebhookVerifier,
    classify_status,
    format_webhook_key,
    parse_webhook_key,
    sign_webhook,
)

KEY, OTHER_KEY = b"k" * 32, b"o" * 24
NOW = 1_700_000_000
BODY = Notification("server.down", {"server": "github"}).encode()


def signed(
    id: str = "msg_1", timestamp: int = NOW, body: bytes = BODY, keys: tuple[bytes, ...] = (KEY,)
) -> dict[str, str]:
    return dict(sign_webhook(id, timestamp, body, keys))


def rejection(headers: dict[str, str], body: bytes = BODY, now: float = NOW) -> str:
    with pytest.raises(WebhookRejected) as caught:
        WebhookVerifier([KEY]).verify(headers, body, now)
    return str(caught.value)


# Keys


def test_a_key_is_read_with_and_without_its_prefix() -> None:
    text = format_webhook_key(KEY)
    assert text == "whsec_" + b64encode(KEY).decode()
    assert parse_webhook_key(f" {text}\n") == KEY == parse_webhook_key(b64encode(KEY).decode())


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("whsec_???", "expected whsec_ and base64"),
        ("whsec_ä", "expected whsec_ and base64"),
        (format_webhook_key(b"k" * 23), "expected 24 to 64 bytes, got 23"),
        (format_webhook_key(b"k" * 65), "expected 24 to 64 bytes, got 65"),
    ],
)
def test_an_invalid_key_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_webhook_key(text)


# Signatures


def test_the_signature_is_that_of_the_example_of_standard_webhooks() -> None:
    # From its reference libraries, whose tests all contain this key, id, time and body.
    key = parse_webhook_key("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    headers = dict(
        sign_webhook("msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}', (key,))
    )
    assert headers == {
        ID_HEADER: "msg_p5jXN8AQM9LWM0D4loKWxJek",
        TIMESTAMP_HEADER: "1614265330",
        SIGNATURE_HEADER: "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }


def test_a_signed_notification_is_accepted() -> None:
    message = WebhookVerifier([KEY]).verify(signed(), BODY, NOW)
    assert (message.id, message.timestamp) == ("msg_1", NOW)
    assert message.notification.method == "server.down"
    assert message.notification.encode() == BODY


@pytest.mark.parametrize("keys", [(KEY, OTHER_KEY), (OTHER_KEY, KEY)])
def test_while_keys_rotate_one_known_key_suffices(keys: tuple[bytes, ...]) -> None:
    headers = signed(keys=keys)
    assert len(headers[SIGNATURE_HEADER].split(" ")) == 2
    for known in keys:
        assert WebhookVerifier([known]).verify(headers, BODY, NOW).id == "msg_1"
    assert WebhookVerifier(keys).verify(signed(keys=(OTHER_KEY,)), BODY, NOW).id == "msg_1"


def test_signatures_of_other_versions_are_ignored() -> None:
    headers = signed()
    headers[SIGNATURE_HEADER] = "v1a,abc nothing v1, v1,ä " + headers[SIGNATURE_HEADER]
    assert WebhookVerifier([KEY]).verify(headers, BODY, NOW).id == "msg_1"


UNSIGNED = "no signature matches the id, the timestamp and the body"


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        (signed(keys=(OTHER_KEY,)), BODY),
        (signed(), BODY + b" "),
        (signed() | {ID_HEADER: "msg_2"}, BODY),
        (signed() | {TIMESTAMP_HEADER: str(NOW + 1)}, BODY),
        (signed() | {SIGNATURE_HEADER: "v2" + signed()[SIGNATURE_HEADER][2:]}, BODY),
        (
            signed()
            | {SIGNATURE_HEADER: " ".join(["v1,x"] * 16) + " " + signed()[SIGNATURE_HEADER]},
            BODY,
        ),
    ],
)
def test_a_delivery_that_no_key_signed_is_rejected(headers: dict[str, str], body: bytes) -> None:
    assert rejection(headers, body) == UNSIGNED


@pytest.mark.parametrize("offset", [-301, 301])
def test_an_old_or_future_delivery_is_rejected(offset: int) -> None:
    headers = signed(timestamp=NOW + offset)
    assert rejection(headers) == "the timestamp is more than 300 s from this clock"


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        ({}, "the header webhook-id is missing"),
        ({ID_HEADER: "a", TIMESTAMP_HEADER: ""}, "the header webhook-timestamp is missing"),
        ({ID_HEADER: "a", TIMESTAMP_HEADER: "1"}, "the header webhook-signature is missing"),
        (signed("x" * 257), "webhook-id: expected at most 256 printable characters"),
        (signed("a\x01"), "webhook-id: expected at most 256 printable characters"),
        (signed("ä"), "webhook-id: expected at most 256 printable characters"),
        (signed() | {TIMESTAMP_HEADER: "-1"}, "webhook-timestamp: expected seconds since 1970"),
        (signed() | {TIMESTAMP_HEADER: "²"}, "webhook-timestamp: expected seconds since 1970"),
        (signed() | {TIMESTAMP_HEADER: "1" * 13}, "webhook-timestamp: expected seconds since 1970"),
        (
            signed() | {TIMESTAMP_HEADER: f"0{NOW}"},
            "webhook-timestamp: expected a number without leading zeros",
        ),
    ],
)
def test_malformed_headers_are_rejected(headers: dict[str, str], reason: str) -> None:
    assert rejection(headers) == reason


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"{", "Parse error"),
        (b'{"jsonrpc":"2.0","id":1,"method":"x"}', "expected a JSON-RPC notification"),
        (b'[{"jsonrpc":"2.0","method":"x"}]', "expected a JSON-RPC notification"),
        (b'{"jsonrpc":"2.0","id":1,"result":1}', "expected a JSON-RPC notification"),
    ],
)
def test_a_body_that_is_no_notification_is_rejected(body: bytes, reason: str) -> None:
    assert rejection(signed(body=body), body).startswith(reason)


# Repeated deliveries


def test_an_accepted_delivery_is_rejected_the_second_time() -> None:
    verifier = WebhookVerifier([KEY])
    verifier.accept(verifier.verify(signed(), BODY, NOW), NOW)
    with pytest.raises(WebhookRepeated, match="msg_1 was received before"):
        verifier.verify(signed(), BODY, NOW)
    later = signed(timestamp=NOW + 7200)  # the sender did not get the answer, and tries again
    with pytest.raises(WebhookRepeated):
        verifier.verify(later, BODY, NOW + 7200)


def test_a_delivery_whose_handling_failed_may_come_again() -> None:
    verifier = WebhookVerifier([KEY])
    verifier.verify(signed(), BODY, NOW)
    assert verifier.verify(signed(), BODY, NOW).id == "msg_1"


def test_without_room_the_oldest_id_is_forgotten_once_its_delivery_is_too_old() -> None:
    verifier = WebhookVerifier([KEY], max_ids=2)
    for name in ("a", "b"):
        verifier.accept(verifier.verify(signed(name), BODY, NOW), NOW)
    third = signed("c", NOW + 300)
    with pytest.raises(WebhookOverload, match="too many messages at once"):
        verifier.verify(third, BODY, NOW + 300)
    verifier.accept(verifier.verify(third, BODY, NOW + 301), NOW + 301)
    fresh = signed("b", NOW + 301)
    with pytest.raises(WebhookRepeated):
        verifier.verify(fresh, BODY, NOW + 301)
    assert verifier.verify(signed("a", NOW + 301), BODY, NOW + 301).id == "a"


def test_messages_that_are_handled_at_once_are_all_remembered() -> None:
    verifier = WebhookVerifier([KEY], max_ids=1)
    messages = [verifier.verify(signed(name), BODY, NOW) for name in ("a", "b")]
    for message in messages:
        verifier.accept(message, NOW)
    for name in ("a", "b"):
        with pytest.raises(WebhookRepeated):
            verifier.verify(signed(name), BODY, NOW)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 400)), max_size=60))
def test_no_copy_of_an_accepted_delivery_is_ever_accepted(steps: list[tuple[int, int]]) -> None:
    verifier = WebhookVerifier([KEY], max_ids=3)
    now, accepted = NOW, set[int]()
    for number, pause in steps:
        now += pause
        try:
            message = verifier.verify(signed(str(number), NOW + 100 * number), BODY, now)
            verifier.accept(message, now)
        except WebhookRejected:
            continue
        assert number not in accepted
        accepted.add(number)


# Retries


@pytest.mark.parametrize(
    ("statuses", "answer"),
    [
        ((200, 202, 204), DeliveryOutcome.DELIVERED),
        ((408, 425, 429, 500, 502, 503), DeliveryOutcome.RETRY),
        ((301, 307, 400, 401, 403, 404, 413, 422), DeliveryOutcome.REFUSED),
        ((410,), DeliveryOutcome.GONE),
    ],
)
def test_the_status_of_the_answer_decides(
    statuses: tuple[int, ...], answer: DeliveryOutcome
) -> None:
    assert {classify_status(status) for status in statuses} == {answer}


def test_delays_double_up_to_a_limit_until_the_sender_gives_up() -> None:
    schedule = RetrySchedule(first_delay=1.0, max_delay=10.0, give_up_after=100.0)
    delays = [schedule.next_delay(attempt, 0.0, 0.0) for attempt in range(1, 7)]
    assert delays == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0]
    assert schedule.next_delay(10_000, 90.0, 0.0) == 10.0
    assert schedule.next_delay(5, 91.0, 0.0) is None


def test_jitter_takes_at_most_half_of_the_delay() -> None:
    assert RetrySchedule().next_delay(3, 0.0, 1.0) == 2.0
    assert RetrySchedule().next_delay(3, 0.0, 0.5) == 3.0
