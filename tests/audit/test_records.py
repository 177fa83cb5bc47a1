"""Audit records of events."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.audit.samples import make_call, make_encoder
from tests.json_values import JSON
from trunkline.audit.records import (
    MAX_NAME_LENGTH,
    MAX_SUBJECT_LENGTH,
    AuditEntry,
    RecordEncoder,
    read_columns,
    truncate,
)
from trunkline.audit.redaction import RedactionRules, Redactor
from trunkline.auth import claims
from trunkline.gateway.events import (
    STATUSES,
    AuthRejected,
    BackendStateChanged,
    ConfigReloaded,
    KillSwitchChanged,
)
from trunkline.jsonrpc import Raw
from trunkline.mcp.identity import Principal


def fields(entry: AuditEntry) -> dict[str, Any]:
    assert b"\n" not in entry.body
    assert (read_columns(entry.body), 1) == (tuple(entry[:6]), entry.records)
    return json.loads(entry.body)


@pytest.mark.holds("O0.15", "M11")
def test_call_record_has_all_fields() -> None:
    found = fields(
        make_encoder().encode_call(make_call(trace="00-aa-bb-01", kind="rate_limited", code=-32004))
    )
    assert found == {
        "kind": "call",
        "at": 1000.5,
        "gateway": "test",
        "id": "c1",
        "request_id": 7,
        "subject": "alice",
        "principal": "key:alice",
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
        "decision": "allow",
        "rule": "policy 3",
        "error": "rate_limited",
        "code": -32004,
        "arguments": {"path": "/a", "password": "[redacted]"},
    }


@pytest.mark.parametrize(
    ("name", "text", "start"),
    [
        ("mismatch", "a.canary: value is not allowed; ", "a.***: value is not allowed; x"),
        ("failure", "Upstream failed: fs: canary", "Upstream failed: fs: ***x"),
    ],
)
def test_a_reason_is_recorded_cut_and_without_configured_secrets(
    name: str, text: str, start: str
) -> None:
    redactor = Redactor(RedactionRules(), lambda text: text.replace(b"canary", b"***"))
    encoder = RecordEncoder("test", redactor)
    reason = text + "x" * MAX_NAME_LENGTH
    found = fields(encoder.encode_call(make_call(**{name: reason})))
    assert found[name].startswith(start)
    assert len(found[name]) == MAX_NAME_LENGTH
    assert name not in fields(encoder.encode_call(make_call()))


def test_unknown_fields_are_left_out() -> None:
    bare = make_call(
        backend=None, backend_revision=None, rule=None, arguments=None, status="unknown"
    )
    found = fields(make_encoder().encode_call(bare))
    assert not {"backend", "rule", "arguments", "decision", "trace", "code"} & set(found)


@pytest.mark.parametrize("status", STATUSES)
def test_decision_is_that_of_the_policy(status: str) -> None:
    expected = {"denied": "deny"}
    assert fields(make_encoder().encode_call(make_call(status=status)))["decision"] == expected.get(
        status, "allow"
    )


@pytest.mark.parametrize("status", [each for each in STATUSES if each != "denied"])
def test_without_policy_evaluation_there_is_no_decision(status: str) -> None:
    assert "decision" not in fields(make_encoder().encode_call(make_call(status=status, rule=None)))


def test_denied_retry_has_a_decision_without_a_rule() -> None:
    assert (
        fields(make_encoder().encode_call(make_call(status="denied", rule=None)))["decision"]
        == "deny"
    )


@pytest.mark.parametrize(
    ("client", "name", "version"),
    [(b"{}", "", ""), (b"[1]", "", ""), (b'{"name":1,"version":[2]}', "1", "[2]"), (b"{", "", "")],
)
def test_client_without_a_name_is_recorded(client: bytes, name: str, version: str) -> None:
    found = fields(make_encoder().encode_call(make_call(client=Raw(client))))
    assert (found["client"], found["client_version"]) == (name, version)


def test_more_clients_than_the_cache_holds_are_recorded() -> None:
    writer = make_encoder()
    for number in range(600):
        assert (
            fields(writer.encode_call(make_call(client=Raw(b'{"name":"c%d"}' % number))))["client"]
            == f"c{number}"
        )


@pytest.mark.parametrize("id", ["abc", None, -(2**53), "x" * 1000, 2**200])
def test_request_id_of_the_client_is_recorded_and_cut(id: Any) -> None:
    found = fields(make_encoder().encode_call(make_call(request_id=id)))["request_id"]
    assert found == id or (isinstance(id, str) and id.startswith(found)) or id == 2**200


def test_foreign_text_is_cut_and_valid_for_databases() -> None:
    long = make_call(name="n" * 5000 + "\0", principal=Principal("x", "s\0" * 500, ("r" * 500,)))
    entry = make_encoder().encode_call(long)
    assert len(entry.name) == MAX_NAME_LENGTH
    assert "\0" not in entry.subject
    assert fields(entry)["role"] == "r" * MAX_SUBJECT_LENGTH
    assert truncate("a\ud800") == "a?"


def test_subjects_are_recorded_with_their_whole_name() -> None:
    subject, role = "s" * claims.MAX_NAME_CHARS, "r" * claims.MAX_NAME_CHARS
    entry = make_encoder().encode_call(make_call(principal=Principal("x", subject, (role,))))
    assert (entry.subject, fields(entry)["subject"], fields(entry)["role"]) == (
        subject,
        subject,
        role,
    )


def test_uri_is_recorded_without_its_secrets() -> None:
    long = make_encoder().encode_call(make_call(name=f"db://me:{'hunter2' * 1000}@h/t"))
    assert (long.name, b"hunter2" in long.body) == ("db://[redacted]@", False)
    assert (
        make_encoder().encode_call(make_call(name="db://ghp_hunter2@h/t")).name
        == "db://[redacted]@h/t"
    )
    entry = make_encoder().encode_call(make_call(name="db://me:hunter2@h/t?token=abc"))
    assert "hunter2" not in entry.body.decode()
    assert "abc" not in entry.body.decode()


def test_call_that_cannot_be_encoded_completely_has_a_record() -> None:
    roles: Any = (3,)
    broken = make_call(principal=Principal("x", "x", roles))
    assert fields(make_encoder().encode_call(broken))["problem"] == "TypeError"


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (
            BackendStateChanged("fs", "waiting", "password=hunter2 refused", 2.0),
            {"kind": "backend", "backend": "fs", "status": "waiting", "error": "[redacted]"},
        ),
        (
            BackendStateChanged("fs", "failed", "gone", None, ("a", "password=hunter2")),
            {
                "kind": "backend",
                "backend": "fs",
                "status": "failed",
                "error": "gone",
                "stderr": ["a", "[redacted]"],
            },
        ),
        (
            KillSwitchChanged("tool", "fs__x", True, "alice"),
            {
                "kind": "switched",
                "target": "tool",
                "name": "fs__x",
                "status": "off",
                "subject": "alice",
            },
        ),
        (
            ConfigReloaded(None, ("servers",)),
            {"kind": "reloaded", "status": "applied", "changed": ["servers"]},
        ),
        (
            ConfigReloaded("bad"),
            {"kind": "reloaded", "status": "rejected", "problem": "bad", "changed": []},
        ),
    ],
)
def test_other_events_are_recorded(event: Any, expected: dict[str, Any]) -> None:
    (entry,) = make_encoder().encode([(5.0, event)])
    assert fields(entry) == {"at": 5.0, "gateway": "test", **expected}


def test_repeated_rejections_have_one_record() -> None:
    rejections = [(float(n), AuthRejected("10.0.0.1", "bad token")) for n in range(1000)]
    (entry,) = make_encoder().encode(rejections)
    assert fields(entry)["count"] == 1000
    many = [(1.0, AuthRejected(f"10.0.{n}.1", "bad token")) for n in range(100)]
    found = [fields(each) for each in make_encoder().encode(many)]
    assert len(found) == 17
    assert sum(each["count"] for each in found) == 100


@given(st.text(), st.text(), JSON)
def test_every_call_has_a_record_whatever_it_contains(
    name: str, subject: str, arguments: Any
) -> None:
    raw = Raw(json.dumps(arguments).encode())
    entry = make_encoder().encode_call(
        make_call(name=name, principal=Principal("x", subject), arguments=raw)
    )
    assert "problem" not in fields(entry)
