"""What is kept of arguments: nothing that is secret, never much, and whatever it is."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.jsonrpc.test_raw import JSON
from trunkline.journal import redact as module
from trunkline.journal.redact import MORE, Redactor, Rules, shorten, without_credentials
from trunkline.jsonrpc import Raw
from trunkline.routing.userinfo import HIDDEN

CANARY = "canary-7f3a"
FEW = 1000
"""So many bytes of arguments, at most, are kept by the shorter way."""


def kept(value: Any, **rules: Any) -> Any:
    raw = value if isinstance(value, bytes) else json.dumps(value).encode()
    found = Redactor(Rules(**rules)).keep(Raw(raw))
    return None if found is None else json.loads(bytes(found))


def test_what_is_no_secret_is_kept() -> None:
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
def test_what_stands_under_a_telling_key_is_hidden_at_any_depth(key: str) -> None:
    arguments = {"a": [{"b": {key: CANARY}}, {key: {"nested": [CANARY]}}], key: [CANARY]}
    found = kept(arguments)
    assert CANARY not in json.dumps(found)
    assert found[key] == HIDDEN
    assert found["a"] == [{"b": {key: HIDDEN}}, {key: HIDDEN}]


@pytest.mark.parametrize(
    "value",
    [
        f"Bearer {CANARY}", f"sk-{CANARY}", f"ghp_{CANARY}", f"Authorization: Basic {CANARY}",
        f"API_KEY={CANARY}", f'{{"password": "{CANARY}"}}', f"postgres://me:{CANARY}@host/db",
        f"eyJhbGciOi.{CANARY}", f"-----BEGIN PRIVATE KEY-----{CANARY}",
    ],
)  # fmt: skip
def test_what_looks_like_a_credential_is_hidden_wherever_it_is(value: str) -> None:
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
def test_of_a_text_all_but_the_credentials_in_it_is_kept(value: str) -> None:
    found = json.dumps(kept({"text": value}))
    assert HIDDEN in found
    for secret in (CANARY, CANARY[:4], "CANARY", "Y2Fu"):
        assert secret not in found
    assert shorten(f"a {value} b") != HIDDEN


@pytest.mark.parametrize(
    "text",
    [
        "a basic understanding of Basic English", "the task-list of risk-averse people",
        "sk-learn", "surveyJson and keyJar", "a well-known some_name",
        "AKIA is a word", "--- BEGIN ---",
    ],
)  # fmt: skip
def test_ordinary_words_are_no_credentials(text: str) -> None:
    assert shorten(f"it is {text}") == f"it is {text}"


@pytest.mark.parametrize(
    ("url", "found"),
    [
        (f"https://ghp_{CANARY}@github.com/x", f"https://{HIDDEN}@github.com/x"),
        (f"https://{CANARY}{CANARY}@h/x", f"https://{HIDDEN}@h/x"),
        (f"https://u:p@{CANARY}@h/x", f"https://{HIDDEN}@h/x"),
        (f"https://u:p/{CANARY}@h/x", f"https://{HIDDEN}@h/x"),
        (f"https://u:?{CANARY}#@h/x", f"https://{HIDDEN}@h/x"),
        (f"https://u@x.org:{CANARY}@h/x", f"https://{HIDDEN}@h/x"),
        (f"redis://:{CANARY}@h and db://u:{CANARY}@h", f"redis://{HIDDEN}@h and db://{HIDDEN}@h"),
        (f"https://h/?to=https://u:{CANARY}@h", f"https://h/?to=https://{HIDDEN}@h"),
        (f"http://h:80/x@y:http://u:{CANARY}@h", f"http://h:80/x@y:http://{HIDDEN}@h"),
    ],
)  # fmt: skip
def test_of_a_url_who_asks_is_hidden_whatever_is_in_the_password(url: str, found: str) -> None:
    assert shorten(url) == found
    assert without_credentials(url) == found


@pytest.mark.parametrize(
    "url",
    [
        "ssh://git@github.com:org/repo.git", "http://localhost:3000/@me", "https://h/a:b@c",
        "https://registry:4873/@scope/pkg?x=y@z", "https://me@h:8080/x", "mail me@h: https://h",
    ],
)  # fmt: skip
def test_a_url_without_a_password_is_kept(url: str) -> None:
    assert shorten(url) == url
    assert without_credentials(url) == url


@pytest.mark.parametrize("password", [CANARY, CANARY * 200])
def test_a_password_that_goes_on_after_the_cut_is_hidden(password: str) -> None:
    for before in range(300):
        found = shorten(f"{'x' * before} https://u:{password}@h/x")
        assert "can" not in found
        assert len(found) < 256 + 32


@pytest.mark.parametrize("key", ["x" * 256 + "password", "password" + "x" * 256, "x" * 70_000])
def test_what_stands_under_a_key_too_long_to_be_kept_is_hidden(key: str) -> None:
    assert CANARY not in json.dumps(kept({key: CANARY}))


@pytest.mark.parametrize(
    ("name", "value"), [("name", "value"), ("Name", "Value"), ("KEY", "VALUE"), ("header", "vaLue")]
)
def test_a_header_as_a_pair_is_hidden(name: str, value: str) -> None:
    secret, other = {value: CANARY, name: "Authorization"}, {name: "Accept", value: "text"}
    assert kept({"headers": [secret, other]})["headers"] == [
        {value: HIDDEN, name: "Authorization"},
        other,
    ]


def test_what_a_pair_with_too_many_members_names_is_taken_for_a_secret() -> None:
    found = kept({"value": CANARY} | {f"k{n}": n for n in range(600)} | {"name": "Authorization"})
    assert found["value"] == HIDDEN


def test_keys_of_the_configuration_are_hidden_too() -> None:
    assert kept({"SSN": "1", "card-no": "2", "x": 3}, patterns=("ssn", "card*")) == {
        "SSN": HIDDEN,
        "card-no": HIDDEN,
        "x": 3,
    }


def test_a_key_that_comes_twice_hides_nothing() -> None:
    assert (
        CANARY.encode()
        not in json.dumps(kept(b'{"x": {"password": "%s"}, "x": 1}' % CANARY.encode())).encode()
    )


def test_long_texts_are_cut_and_say_how_long_they_were() -> None:
    found = kept({"content": "x" * 10_000})["content"]
    assert found == "x" * 256 + f"{MORE} (10000 characters)"


def test_much_is_cut_to_what_fits() -> None:
    arguments = {f"key{n}": "x" * 200 for n in range(100)}
    found = kept(arguments)
    assert len(json.dumps(found, ensure_ascii=False).encode()) <= 4096
    assert found["key0"] == "x" * 200
    assert found[MORE].endswith(" more")


def test_of_a_large_argument_the_small_ones_are_kept() -> None:
    found = kept({"path": "/a", "content": "x" * 200_000, "token": CANARY})
    assert found == {"path": "/a", "content": {MORE: "200002 bytes"}, "token": HIDDEN}


def test_what_is_huge_is_not_looked_into() -> None:
    assert kept({"content": "x" * 2_000_000}) == {MORE: "2000015 bytes"}
    assert kept({"content": "x" * 2_000_000}, mode="full") == {MORE: "2000015 bytes"}


def test_nothing_is_kept_if_nothing_is_wanted_or_there_is_nothing() -> None:
    assert kept({"a": 1}, mode="none") is None
    assert Redactor(Rules()).keep(None) is None


def test_all_is_kept_on_one_line_if_all_is_wanted() -> None:
    found = Redactor(Rules(mode="full")).keep(Raw(b'{ "password":\n "hunter2" }'))
    assert found is not None
    assert bytes(found) == b'{"password":"hunter2"}'
    assert kept({"a": "x" * 5000}, mode="full") == {MORE: "5009 bytes"}


@pytest.mark.parametrize("raw", [b"{", b"1e999", b"[" * 100_000, b'"\xff"', b""])
def test_what_cannot_be_read_is_no_failure(raw: bytes) -> None:
    for mode in ("redacted", "full"):
        assert kept(raw, mode=mode) is not None


def test_what_is_nested_deeply_or_has_no_end_is_cut() -> None:
    deep: Any = 1
    for _ in range(100):
        deep = {"a": [deep]}
    assert MORE in json.dumps(kept(deep), ensure_ascii=False)
    assert MORE in kept({"list": list(range(5000))})["list"][-1]


def test_a_uri_keeps_its_place_and_not_its_secrets() -> None:
    assert without_credentials("file:///a?b=c") == "file:///a?b=c"
    assert (
        without_credentials(f"db://me:{CANARY}@h/x?token={CANARY}") == f"db://{HIDDEN}@h/x?{HIDDEN}"
    )
    assert shorten("a plain text: with a colon") == "a plain text: with a colon"


@given(JSON, st.integers(256, 2000))
def test_whatever_it_is_little_of_it_is_kept(value: Any, room: int) -> None:
    found = Redactor(Rules(max_bytes=room)).keep(Raw(json.dumps(value).encode()))
    assert (found is None) == (value is None)
    if found is not None:
        assert memoryview(found).nbytes <= room
        json.loads(bytes(found))


@given(JSON)
def test_no_secret_is_ever_kept(value: Any) -> None:
    found = kept({"outer": [value, {"my_secret": [CANARY, value]}]})
    assert CANARY not in json.dumps(found)


_TELLING = (
    "password", "Api-Key", "pin", "pinned", "name", "KEY", "value", "Value", "Authorization", "a.b",
    "x" * 300, "Bearer abc", "sk-" + "a" * 20, "key=abc", "db://u:p@h", "x" * 260, "", "J", "a_b-c",
)  # fmt: skip
_TEXTS = st.sampled_from(_TELLING) | st.text(max_size=8)
_ARGUMENTS = st.recursive(
    JSON | _TEXTS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(_TEXTS, inner, max_size=5) | st.tuples(inner)
    ),
    max_leaves=40,
)


@given(_ARGUMENTS, st.integers(64, 4096))
def test_of_few_arguments_the_same_is_kept_by_the_shorter_way(value: Any, room: int) -> None:
    raw = Raw(json.dumps(value).encode())
    shorter, longer = Redactor(Rules(max_bytes=room)), Redactor(Rules(max_bytes=room))
    with pytest.MonkeyPatch.context() as patch:
        found = shorter.keep(raw)
        patch.setattr(module, "_FEW", -1)
        expected = longer.keep(raw)
    assert bytes(found or b"") == bytes(expected or b"")
    assert (found is None) == (value is None)
    assert bytes(shorter.keep(raw) or b"") == bytes(found or b"")  # also when all keys are known


@given(_ARGUMENTS | st.floats(1e9, 1e20), st.integers(64, 4096))
def test_what_is_not_written_yet_is_the_same_and_has_room(value: Any, room: int) -> None:
    for raw in (json.dumps(value).encode(), str(value).encode("utf-8", "replace")):
        redactor = Redactor(Rules(max_bytes=room))
        for _ in range(2):  # also when all keys are known
            found, expected = redactor.value(Raw(raw)), redactor.keep(Raw(raw))
            assert (found is None) == (expected is None)
            assert msgspec.json.encode(found) == bytes(expected or b"null")


def test_where_not_all_is_redacted_nothing_is_kept_that_is_not_wanted() -> None:
    raw = Raw(b'{"password" : "x"}')
    assert Redactor(Rules(mode="none")).value(raw) is None
    assert Redactor(Rules(mode="full")).value(raw) == Raw(b'{"password":"x"}')
    assert Redactor(Rules()).value(None) is None
    assert Redactor(Rules(mode="full")).value(Raw(b" null")) is None


@pytest.mark.parametrize("dense", [b"[%s]", b'{"a":[%s]}', b"[[%s]]"])
def test_few_bytes_cannot_hold_too_much(dense: bytes) -> None:
    for count in range(FEW // 2 - 5, FEW // 2 + 1):
        raw = dense % b",".join([b"1"] * count)
        if len(raw) <= FEW:
            assert kept(raw) == json.loads(raw)


def test_what_nests_in_few_bytes_is_cut_where_it_is_cut_in_many() -> None:
    for depth in range(14, 20):
        for raw in (b"[" * depth + b"1" + b"]" * depth, b'{"a":' * depth + b"1" + b"}" * depth):
            assert kept(raw) == kept(raw + b" " * FEW)
