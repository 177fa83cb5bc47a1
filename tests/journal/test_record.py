"""What is written down of events."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.journal.samples import call, scribe
from tests.jsonrpc.test_raw import JSON
from trunkline.auth import claims
from trunkline.gateway.events import STATUSES, BackendMoved, Reloaded, Switched, TurnedAway
from trunkline.journal.record import MAX_NAME, MAX_WHO, Entry, columns_of, cut
from trunkline.jsonrpc import Raw
from trunkline.mcp.principal import Principal


def said(entry: Entry) -> dict[str, Any]:
    assert b"\n" not in entry.body
    assert (columns_of(entry.body), 1) == (tuple(entry[:6]), entry.records)
    return json.loads(entry.body)


@pytest.mark.holds("O0.15", "M11")
def test_all_that_is_to_be_known_of_a_call_is_written_down() -> None:
    found = said(scribe().call(call(trace="00-aa-bb-01", kind="rate_limited", code=-32004)))
    assert found == {
        "kind": "call",
        "at": 1000.5,
        "gateway": "test",
        "id": "c1",
        "request_id": 7,
        "subject": "alice",
        "client": "cursor",
        "client_version": "1.2",
        "revision": "2025-11-25",
        "method": "tools/call",
        "name": "fs__read_file",
        "status": "success",
        "gateway_ms": 1.0,
        "upstream_ms": 2.0,
        "bytes_in": 120,
        "bytes_out": 4000,
        "role": "dev",
        "trace": "00-aa-bb-01",
        "backend": "fs",
        "backend_revision": "2025-06-18",
        "verdict": "allow",
        "rule": "policy 3",
        "error": "rate_limited",
        "code": -32004,
        "arguments": {"path": "/a", "password": "[redacted]"},
    }


def test_what_is_not_known_is_left_out() -> None:
    bare = call(backend=None, backend_revision=None, rule=None, arguments=None, status="unknown")
    found = said(scribe().call(bare))
    assert not {"backend", "rule", "arguments", "verdict", "trace", "code"} & set(found)


@pytest.mark.parametrize("status", STATUSES)
def test_the_verdict_is_that_of_the_policy(status: str) -> None:
    expected = {"denied": "deny", "unknown": "deny"}
    assert said(scribe().call(call(status=status)))["verdict"] == expected.get(status, "allow")


@pytest.mark.parametrize("status", [each for each in STATUSES if each != "denied"])
def test_where_the_policy_was_not_asked_there_is_no_verdict(status: str) -> None:
    assert "verdict" not in said(scribe().call(call(status=status, rule=None)))


def test_a_retry_that_is_denied_has_a_verdict_without_a_rule() -> None:
    assert said(scribe().call(call(status="denied", rule=None)))["verdict"] == "deny"


@pytest.mark.parametrize(
    ("client", "name", "version"),
    [(b"{}", "", ""), (b"[1]", "", ""), (b'{"name":1,"version":[2]}', "1", "[2]"), (b"{", "", "")],
)
def test_a_client_that_does_not_say_who_it_is_is_recorded(
    client: bytes, name: str, version: str
) -> None:
    found = said(scribe().call(call(client=Raw(client))))
    assert (found["client"], found["client_version"]) == (name, version)


def test_clients_beyond_counting_are_recorded() -> None:
    writer = scribe()
    for number in range(600):
        assert (
            said(writer.call(call(client=Raw(b'{"name":"c%d"}' % number))))["client"]
            == f"c{number}"
        )


@pytest.mark.parametrize("id", ["abc", None, -(2**53), "x" * 1000, 2**200])
def test_the_id_of_the_client_is_written_down_as_far_as_it_goes(id: Any) -> None:
    found = said(scribe().call(call(request_id=id)))["request_id"]
    assert found == id or (isinstance(id, str) and id.startswith(found)) or id == 2**200


def test_text_of_others_is_cut_and_no_database_stumbles_over_it() -> None:
    long = call(name="n" * 5000 + "\0", principal=Principal("x", "s\0" * 500, ("r" * 500,)))
    entry = scribe().call(long)
    assert len(entry.name) == MAX_NAME
    assert "\0" not in entry.subject
    assert said(entry)["role"] == "r" * MAX_WHO
    assert cut("a\ud800") == "a?"


def test_whoever_is_let_in_is_recorded_by_the_whole_name() -> None:
    subject, role = "s" * claims.MAX_NAME, "r" * claims.MAX_NAME
    entry = scribe().call(call(principal=Principal("x", subject, (role,))))
    assert (entry.subject, said(entry)["subject"], said(entry)["role"]) == (subject, subject, role)


def test_a_uri_is_recorded_without_its_secrets() -> None:
    long = scribe().call(call(name=f"db://me:{'hunter2' * 1000}@h/t"))
    assert (long.name, b"hunter2" in long.body) == ("db://[redacted]@", False)
    assert scribe().call(call(name="db://ghp_hunter2@h/t")).name == "db://[redacted]@h/t"
    entry = scribe().call(call(name="db://me:hunter2@h/t?token=abc"))
    assert "hunter2" not in entry.body.decode()
    assert "abc" not in entry.body.decode()


def test_what_cannot_be_written_down_whole_is_written_down_all_the_same() -> None:
    roles: Any = (3,)
    broken = call(principal=Principal("x", "x", roles))
    assert said(scribe().call(broken))["problem"] == "TypeError"


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (
            BackendMoved("fs", "waiting", "password=hunter2 refused", 2.0),
            {"kind": "backend", "backend": "fs", "status": "waiting", "error": "[redacted]"},
        ),
        (
            Switched("tool", "fs__x", True, "alice"),
            {
                "kind": "switched",
                "what": "tool",
                "name": "fs__x",
                "status": "off",
                "subject": "alice",
            },
        ),
        (
            Reloaded(None, ("servers",)),
            {"kind": "reloaded", "status": "taken", "changed": ["servers"]},
        ),
        (
            Reloaded("bad"),
            {"kind": "reloaded", "status": "refused", "problem": "bad", "changed": []},
        ),
    ],
)
def test_what_else_happens_is_written_down(event: Any, expected: dict[str, Any]) -> None:
    (entry,) = scribe().write([(5.0, event)])
    assert said(entry) == {"at": 5.0, "gateway": "test", **expected}


def test_who_knocks_often_has_one_record() -> None:
    knocks = [(float(n), TurnedAway("10.0.0.1", "bad token")) for n in range(1000)]
    (entry,) = scribe().write(knocks)
    assert said(entry)["count"] == 1000
    many = [(1.0, TurnedAway(f"10.0.{n}.1", "bad token")) for n in range(100)]
    found = [said(each) for each in scribe().write(many)]
    assert len(found) == 17
    assert sum(each["count"] for each in found) == 100


@given(st.text(), st.text(), JSON)
def test_there_is_a_record_whatever_a_call_says(name: str, subject: str, arguments: Any) -> None:
    raw = Raw(json.dumps(arguments).encode())
    entry = scribe().call(call(name=name, principal=Principal("x", subject), arguments=raw))
    assert "problem" not in said(entry)
