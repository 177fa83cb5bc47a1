"""Exceptions that nobody foresaw: an id for the caller, everything else for the operator."""

import pytest

from trunkline.jsonrpc import Incident, RpcError, print_incident
from trunkline.jsonrpc.incident import answer_for


def test_an_rpc_error_is_its_own_answer() -> None:
    reports: list[Incident] = []
    error = RpcError(1, "x")
    assert answer_for(error, "m", reports.append) is error
    assert reports == []


def test_the_caller_and_the_report_share_an_id_and_nothing_else() -> None:
    reports: list[Incident] = []
    bug = ValueError("secret")
    answer = answer_for(bug, "m", reports.append)
    (incident,) = reports
    assert incident.error is bug
    assert incident.method == "m"
    assert answer == RpcError.internal_error(data={"incident": incident.id})


def test_a_report_that_fails_keeps_nobody_from_the_answer() -> None:
    def fail(_: Incident) -> None:
        raise OSError("the log is full")

    assert answer_for(ValueError(), "m", fail).code == -32603


def test_two_incidents_have_two_ids() -> None:
    reports: list[Incident] = []
    for _ in range(2):
        answer_for(ValueError(), "m", reports.append)
    assert reports[0].id != reports[1].id


def test_by_default_incidents_are_printed_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    print_incident(Incident("abc123", "m", ValueError("why")))
    out, err = capsys.readouterr()
    assert out == ""
    assert "incident abc123 in method 'm'" in err
    assert "ValueError: why" in err
