"""Redaction keeps no secrets, stays within its limits, and never fails."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.json_values import JSON
from trunkline.audit.redaction import ELLIPSIS, RedactionRules, Redactor, redact_text, redact_uri
from trunkline.jsonrpc import Raw
from trunkline.printable import REDACTED

CANARY = "canary-7f3a"
SMALL_BYTES = 1000  # arguments up to this size take the small path


def kept(value: Any, **rules: Any) -> Any:
    raw = value if isinstance(value, bytes) else json.dumps(value).encode()
    found = Redactor(RedactionRules(**rules)).redact(Raw(raw))
    return None if found is None else json.loads(bytes(found))


def test_plain_values_are_kept() -> None:
    arguments = {"path": "/a/b", "depth": 3, "deep": {"list": [1, 2.5, None, True]}}
    assert kept(arguments) == arguments


@pytest.mark.holds("M11")
@pytest.mark.parametrize(
    "key",
    [
        "password", "PASSWORD", "dbPassword", "db-passwd", "client_secret", "token", "access_token",
        "X-Auth-Token", "Authorization", "api_key", "apiKey", "API-KEY", "x api key", "cookie",
        "Set-Cookie", "aws_secret_access_key", "private.key", "credentials", "pin", "pwd",
    ],
)  # fmt: skip
def test_values_under_secret_keys_are_hidden_at_any_depth(key: str) -> None:
    arguments = {"a": [{"b": {key: CANARY}}, {key: {"nested": [CANARY]}}], key: [CANARY]}
    found = kept(arguments)
    assert CANARY not in json.dumps(found)
    assert found[key] == REDACTED
    assert found["a"] == [{"b": {key: REDACTED}}, {key: REDACTED}]


@pytest.mark.parametrize(
    "value",
    [
        f"Bearer {CANARY}", f"sk-{CANARY}", f"ghp_{CANARY}", f"Authorization: Basic {CANARY}",
        f"API_KEY={CANARY}", f'{{"password": "{CANARY}"}}', f"postgres://me:{CANARY}@host/db",
        f"eyJhbGciOi.{CANARY}", f"-----BEGIN PRIVATE KEY-----{CANARY}",
    ],
)  # fmt: skip
def test_credentials_are_hidden_everywhere(value: str) -> None:
    assert CANARY not in json.dumps(kept({"text": value, "list": [value]}))


@pytest.mark.parametrize(
    "value",
    [
        f"BEARER {CANARY}", f" Bearer {CANARY}", f'curl -H "X-Foo: bearer {CANARY}" x',
        f"bearer:{CANARY}", f"X-Foo\\nBearer {CANARY}", "X-Foo: Basic Y2FuYXJ5LTdmM2E6",
        f"git clone; ghp_{CANARY}", f"see github_pat_{CANARY}", f"glpat-{CANARY}, xoxb-{CANARY}",
        f"it is sk-{CANARY} or AKIACANARY7F3A", f"key is eyJhbGciOiJI.{CANARY}.{CANARY}",
        f"here:\n-----BEGIN RSA PRIVATE KEY-----\n{CANARY}\n{CANARY}", f"{'x ' * 120}ghp_{CANARY}",
    ],
)  # fmt: skip
def test_text_around_credentials_is_kept(value: str) -> None:
    found = json.dumps(kept({"text": value}))
    assert REDACTED in found
    for secret in (CANARY, CANARY[:4], "CANARY", "Y2Fu"):
        assert secret not in found
    assert redact_text(f"a {value} b") != REDACTED


@pytest.mark.parametrize(
    "text",
    [
        "a basic understanding of Basic English", "the task-list of risk-averse people",
        "sk-learn", "surveyJson and keyJar", "a well-known some_name",
        "AKIA is a word", "--- BEGIN ---",
    ],
)  # fmt: skip
def test_ordinary_words_are_not_credentials(text: str) -> None:
    assert redact_text(f"it is {text}") == f"it is {text}"


@pytest.mark.parametrize(
    ("url", "found"),
    [
        (f"https://ghp_{CANARY}@github.com/x", f"https://{REDACTED}@github.com/x"),
        (f"https://{CANARY}{CANARY}@h/x", f"https://{REDACTED}@h/x"),
        (f"https://u:p@{CANARY}@h/x", f"https://{REDACTED}@h/x"),
        (f"https://u:p/{CANARY}@h/x", f"https://{REDACTED}@h/x"),
        (f"https://u:?{CANARY}#@h/x", f"https://{REDACTED}@h/x"),
        (f"https://u@x.org:{CANARY}@h/x", f"https://{REDACTED}@h/x"),
        (f"redis://:{CANARY}@h and db://u:{CANARY}@h", f"redis://{REDACTED}@h and db://{REDACTED}@h"),
        (f"https://h/?to=https://u:{CANARY}@h", f"https://h/?to=https://{REDACTED}@h"),
        (f"http://h:80/x@y:http://u:{CANARY}@h", f"http://h:80/x@y:http://{REDACTED}@h"),
    ],
)  # fmt: skip
def test_userinfo_of_a_url_is_hidden_whatever_the_password_contains(url: str, found: str) -> None:
    assert redact_text(url) == found
    assert redact_uri(url) == found


@pytest.mark.parametrize(
    "url",
    [
        "ssh://git@github.com:org/repo.git", "http://localhost:3000/@me", "https://h/a:b@c",
        "https://registry:4873/@scope/pkg?x=y@z", "https://me@h:8080/x", "mail me@h: https://h",
    ],
)  # fmt: skip
def test_url_without_a_password_is_kept(url: str) -> None:
    assert redact_text(url) == url
    assert redact_uri(url) == url


@pytest.mark.parametrize("password", [CANARY, CANARY * 200])
def test_password_that_crosses_the_cut_is_hidden(password: str) -> None:
    for before in range(300):
        found = redact_text(f"{'x' * before} https://u:{password}@h/x")
        assert "can" not in found
        assert len(found) < 256 + 32


@pytest.mark.parametrize("key", ["x" * 256 + "password", "password" + "x" * 256, "x" * 70_000])
def test_value_under_an_overlong_key_is_hidden(key: str) -> None:
    assert CANARY not in json.dumps(kept({key: CANARY}))


@pytest.mark.parametrize(
    ("name", "value"), [("name", "value"), ("Name", "Value"), ("KEY", "VALUE"), ("header", "vaLue")]
)
def test_secret_in_a_name_value_pair_is_hidden(name: str, value: str) -> None:
    secret, other = {value: CANARY, name: "Authorization"}, {name: "Accept", value: "text"}
    assert kept({"headers": [secret, other]})["headers"] == [
        {value: REDACTED, name: "Authorization"},
        other,
    ]


def test_value_of_an_oversized_pair_counts_as_secret() -> None:
    found = kept({"value": CANARY} | {f"k{n}": n for n in range(600)} | {"name": "Authorization"})
    assert found["value"] == REDACTED


def test_configured_keys_are_hidden_too() -> None:
    assert kept({"SSN": "1", "card-no": "2", "x": 3}, patterns=("ssn", "card*")) == {
        "SSN": REDACTED,
        "card-no": REDACTED,
        "x": 3,
    }


def test_duplicate_key_hides_nothing() -> None:
    assert (
        CANARY.encode()
        not in json.dumps(kept(b'{"x": {"password": "%s"}, "x": 1}' % CANARY.encode())).encode()
    )


def test_long_texts_are_cut_and_state_their_length() -> None:
    found = kept({"content": "x" * 10_000})["content"]
    assert found == "x" * 256 + f"{ELLIPSIS} (10000 characters)"


def test_large_arguments_are_cut_to_the_limit() -> None:
    arguments = {f"key{n}": "x" * 200 for n in range(100)}
    found = kept(arguments)
    assert len(json.dumps(found, ensure_ascii=False).encode()) <= 4096
    assert found["key0"] == "x" * 200
    assert found[ELLIPSIS].endswith(" more")


def test_small_members_are_kept_together_with_a_large_one() -> None:
    found = kept({"path": "/a", "content": "x" * 200_000, "token": CANARY})
    assert found == {"path": "/a", "content": {ELLIPSIS: "200002 bytes"}, "token": REDACTED}


def test_huge_arguments_are_not_decoded() -> None:
    assert kept({"content": "x" * 2_000_000}) == {ELLIPSIS: "2000015 bytes"}
    assert kept({"content": "x" * 2_000_000}, mode="full") == {ELLIPSIS: "2000015 bytes"}


def test_mode_none_and_null_arguments_keep_nothing() -> None:
    assert kept({"a": 1}, mode="none") is None
    assert Redactor(RedactionRules()).redact(None) is None


def test_mode_full_keeps_everything_on_one_line() -> None:
    found = Redactor(RedactionRules(mode="full")).redact(Raw(b'{ "password":\n "hunter2" }'))
    assert found is not None
    assert bytes(found) == b'{"password":"hunter2"}'
    assert kept({"a": "x" * 5000}, mode="full") == {ELLIPSIS: "5009 bytes"}


@pytest.mark.parametrize("raw", [b"{", b"1e999", b"[" * 100_000, b'"\xff"', b""])
def test_invalid_arguments_do_not_fail(raw: bytes) -> None:
    for mode in ("redacted", "full"):
        assert kept(raw, mode=mode) is not None


def test_deep_and_long_arguments_are_cut() -> None:
    deep: Any = 1
    for _ in range(100):
        deep = {"a": [deep]}
    assert ELLIPSIS in json.dumps(kept(deep), ensure_ascii=False)
    assert ELLIPSIS in kept({"list": list(range(5000))})["list"][-1]


def test_uri_keeps_its_address_without_secrets() -> None:
    assert redact_uri("file:///a?b=c") == "file:///a?b=c"
    assert redact_uri(f"db://me:{CANARY}@h/x?token={CANARY}") == f"db://{REDACTED}@h/x?{REDACTED}"
    assert redact_text("a plain text: with a colon") == "a plain text: with a colon"


@given(JSON, st.integers(256, 2000))
def test_result_never_exceeds_the_byte_limit(value: Any, room: int) -> None:
    found = Redactor(RedactionRules(max_bytes=room)).redact(Raw(json.dumps(value).encode()))
    assert (found is None) == (value is None)
    if found is not None:
        assert memoryview(found).nbytes <= room
        json.loads(bytes(found))


@given(JSON)
def test_no_secret_is_ever_kept(value: Any) -> None:
    found = kept({"outer": [value, {"my_secret": [CANARY, value]}]})
    assert CANARY not in json.dumps(found)


_SECRETS = (
    "password", "Api-Key", "pin", "pinned", "name", "KEY", "value", "Value", "Authorization", "a.b",
    "x" * 300, "Bearer abc", "sk-" + "a" * 20, "key=abc", "db://u:p@h", "x" * 260, "", "J", "a_b-c",
)  # fmt: skip
_TEXTS = st.sampled_from(_SECRETS) | st.text(max_size=8)
_ARGUMENTS = st.recursive(
    JSON | _TEXTS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(_TEXTS, inner, max_size=5) | st.tuples(inner)
    ),
    max_leaves=40,
)


@given(_ARGUMENTS, st.integers(64, 4096))
def test_small_and_large_paths_agree(value: Any, room: int) -> None:
    raw = Raw(json.dumps(value).encode())
    small, longer = (
        Redactor(RedactionRules(max_bytes=room)),
        Redactor(RedactionRules(max_bytes=room), small_bytes=-1),
    )
    found, expected = small.redact(raw), longer.redact(raw)
    assert bytes(found or b"") == bytes(expected or b"")
    assert (found is None) == (value is None)
    assert bytes(small.redact(raw) or b"") == bytes(found or b"")  # also with cached keys


@given(_ARGUMENTS | st.floats(1e9, 1e20), st.integers(64, 4096))
def test_inline_redaction_agrees_and_fits(value: Any, room: int) -> None:
    for raw in (json.dumps(value).encode(), str(value).encode("utf-8", "replace")):
        redactor = Redactor(RedactionRules(max_bytes=room))
        for _ in range(2):  # also with cached keys
            found, expected = redactor.redact_inline(Raw(raw)), redactor.redact(Raw(raw))
            assert (found is None) == (expected is None)
            assert msgspec.json.encode(found) == bytes(expected or b"null")


def test_inline_redaction_respects_other_modes() -> None:
    raw = Raw(b'{"password" : "x"}')
    assert Redactor(RedactionRules(mode="none")).redact_inline(raw) is None
    assert Redactor(RedactionRules(mode="full")).redact_inline(raw) == Raw(b'{"password":"x"}')
    assert Redactor(RedactionRules()).redact_inline(None) is None
    assert Redactor(RedactionRules(mode="full")).redact_inline(Raw(b" null")) is None


@pytest.mark.parametrize("dense", [b"[%s]", b'{"a":[%s]}', b"[[%s]]"])
def test_small_arguments_cannot_exceed_the_limits(dense: bytes) -> None:
    for count in range(SMALL_BYTES // 2 - 5, SMALL_BYTES // 2 + 1):
        raw = dense % b",".join([b"1"] * count)
        if len(raw) <= SMALL_BYTES:
            assert kept(raw) == json.loads(raw)


def test_deep_nesting_is_cut_alike_in_small_and_large_arguments() -> None:
    for depth in range(14, 20):
        for raw in (b"[" * depth + b"1" + b"]" * depth, b'{"a":' * depth + b"1" + b"}" * depth):
            assert kept(raw) == kept(raw + b" " * SMALL_BYTES)
