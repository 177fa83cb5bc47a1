"""Codes, texts and blame."""

import pytest

from trunkline.jsonrpc import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    UNSET,
    ConnectionLost,
    LocalProtocolError,
    ProtocolError,
    Raw,
    RemoteProtocolError,
    RpcError,
)


@pytest.mark.holds("S0.10", "S3.9", "S4.9")
def test_the_five_codes_are_those_of_the_specification() -> None:
    assert (PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS, INTERNAL_ERROR) == (
        -32700,
        -32600,
        -32601,
        -32602,
        -32603,
    )


@pytest.mark.holds("S4.9", "S4.10", "C19")
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


def test_an_error_shows_its_code_but_never_its_data() -> None:
    error = RpcError(-32001, "no", {"token": "secret"})
    assert str(error) == "no (-32001)"
    assert repr(error) == "RpcError(-32001, 'no', data=…)"
    assert repr(RpcError(1, "x")) == "RpcError(1, 'x')"


def test_bytes_as_data_are_json_already() -> None:
    assert RpcError(1, "x", b"[1]").data == Raw(b"[1]")


def test_errors_are_equal_when_all_three_parts_are() -> None:
    assert RpcError(1, "x", [1]) == RpcError(1, "x", [1])
    assert RpcError(1, "x") != RpcError(1, "x", None)
    assert RpcError(1, "x") != "x"
    assert hash(RpcError(1, "x", [1])) == hash(RpcError(1, "x", [2]))


def test_the_type_of_an_exception_says_whose_fault_it_is() -> None:
    assert issubclass(LocalProtocolError, ProtocolError)
    assert issubclass(RemoteProtocolError, ProtocolError)
    assert not issubclass(ConnectionLost, ProtocolError)
    violation = RemoteProtocolError(RpcError.parse_error("why"))
    assert str(violation) == "Parse error: why"
    assert violation.answer is None
    assert violation.response_id is UNSET
