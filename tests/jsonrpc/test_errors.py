"""Error codes and texts, exceptions by fault, and reports of unexpected exceptions."""

import pytest

from trunkline.jsonrpc import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    UNSET,
    ConnectionLost,
    Incident,
    LocalProtocolError,
    MalformedResponse,
    ProtocolError,
    Raw,
    RemoteProtocolError,
    RpcError,
    print_incident,
)
from trunkline.jsonrpc.errors import to_rpc_error, without_data


@pytest.mark.holds("S0.10", "S3.9", "S4.9", "S1.12")
def test_the_five_codes_are_those_of_the_specification() -> None:
    assert (PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS, INTERNAL_ERROR) == (
        -32700,
        -32600,
        -32601,
        -32602,
        -32603,
    )


@pytest.mark.holds("S4.9", "S4.10", "C19", "S1.6", "S1.7", "S1.8", "S1.9")
@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (RpcError.parse_error(), -32700, "Parse error"),
        (RpcError.invalid_request(), -32600, "Invalid Request"),
        (RpcError.method_not_found(), -32601, "Method not found"),
        (RpcError.invalid_params(), -32602, "Invalid params"),
        (RpcError.internal_error(), -32603, "Internal error"),
    ],
)
def test_the_five_texts_are_those_of_the_specification(
    error: RpcError, code: int, message: str
) -> None:
    assert (error.code, error.message, error.data) == (code, message, UNSET)


@pytest.mark.holds("C19")
def test_a_detail_follows_the_standard_text() -> None:
    assert RpcError.method_not_found("foo/bar").message == "Method not found: foo/bar"


def test_an_error_shows_its_data() -> None:
    error = RpcError(-32001, "no", {"left": 0})
    assert str(error) == "no (-32001): {'left': 0}"
    assert repr(error) == "RpcError(-32001, 'no', {'left': 0})"
    received = MalformedResponse(-32001, "no", b'{"left":0,"of":"\xc3\xa9"}')
    assert str(received) == 'no (-32001): {"left":0,"of":"é"}'
    assert repr(received) == 'MalformedResponse(-32001, \'no\', {"left":0,"of":"é"})'
    assert (str(RpcError(1, "x")), repr(RpcError(1, "x"))) == ("x (1)", "RpcError(1, 'x')")
    assert str(RpcError(1, "x", None)) == "x (1): None"


class Unprintable:
    def __repr__(self) -> str:
        raise ValueError("secret")


@pytest.mark.parametrize(
    "data", ["x" * 10**6, list(range(10**5)), b'"' + "€".encode() * 10**5 + b'"', b"\xff" * 10**5]
)
def test_the_data_that_an_error_shows_is_bounded(data: object) -> None:
    assert len(str(RpcError(1, "x", data))) < 320


def test_the_data_of_an_error_is_shown_on_one_printable_line() -> None:
    data = '{\n"a":"\u202e\u009b"}'.encode()
    assert str(RpcError(1, "x", data)) == 'x (1): {\\n"a":"\\u202e\\x9b"}'
    assert "Unprintable" in repr(RpcError(1, "x", [Unprintable()]))


def test_the_text_for_logs_has_no_data() -> None:
    assert without_data(RpcError(-32001, "no", {"token": "secret"})) == "no (-32001)"
    assert without_data(ValueError("why")) == "why"


def test_bytes_as_data_count_as_json() -> None:
    assert RpcError(1, "x", b"[1]").data == Raw(b"[1]")


def test_errors_are_equal_when_all_three_parts_are() -> None:
    assert RpcError(1, "x", [1]) == RpcError(1, "x", [1])
    assert RpcError(1, "x") != RpcError(1, "x", None)
    assert RpcError(1, "x") != "x"
    assert hash(RpcError(1, "x", [1])) == hash(RpcError(1, "x", [2]))


def test_the_type_of_an_exception_says_which_side_is_at_fault() -> None:
    assert issubclass(LocalProtocolError, ProtocolError)
    assert issubclass(RemoteProtocolError, ProtocolError)
    assert not issubclass(ConnectionLost, ProtocolError)
    violation = RemoteProtocolError(RpcError.parse_error("why"))
    assert str(violation) == "Parse error: why"
    assert violation.error_payload is None
    assert violation.response_id is UNSET


def test_an_rpc_error_is_its_own_response() -> None:
    reports: list[Incident] = []
    error = RpcError(1, "x")
    assert to_rpc_error(error, "m", reports.append) is error
    assert reports == []


def test_response_and_report_share_only_the_incident_id() -> None:
    reports: list[Incident] = []
    bug = ValueError("secret")
    answer = to_rpc_error(bug, "m", reports.append)
    (incident,) = reports
    assert incident.error is bug
    assert incident.method == "m"
    assert answer == RpcError.internal_error(data={"incident": incident.id})


def test_a_failing_report_does_not_prevent_the_response() -> None:
    def fail(_: Incident) -> None:
        raise OSError("the log is full")

    assert to_rpc_error(ValueError(), "m", fail).code == -32603


def test_two_incidents_have_two_ids() -> None:
    reports: list[Incident] = []
    for _ in range(2):
        to_rpc_error(ValueError(), "m", reports.append)
    assert reports[0].id != reports[1].id


def test_by_default_incidents_are_printed_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    print_incident(Incident("abc123", "m", ValueError("why")))
    out, err = capsys.readouterr()
    assert out == ""
    assert "incident abc123 in method 'm'" in err
    assert "ValueError: why" in err
