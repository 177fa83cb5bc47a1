"""Results that require input, and the retried calls: read strictly, written unchanged."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.jsonrpc import UNSET, Raw, RpcError, from_raw, read_members, to_raw
from trunkline.mcp.input_required import (
    MAX_INPUT_REQUESTS,
    InputRequired,
    RetryParams,
    put_retry,
    read_input_required,
    read_retry,
    read_url_elicitations,
    replace_state,
    starts_complete,
    strip_retry,
    write_input_required,
)
from trunkline.mcp.params import Params
from trunkline.mcp.server_requests import (
    ELICIT,
    LIST_ROOTS,
    SAMPLE,
    ServerRequest,
    missing_capability_error,
)

ROOTS = ServerRequest(LIST_ROOTS)
FORM = ServerRequest(ELICIT, Raw(b'{"mode":"form", "message":"?"}'))

any_request = st.sampled_from([ROOTS, FORM, ServerRequest(SAMPLE, Raw(b'{"messages": [1.0]}'))])
texts = st.text(st.characters(exclude_categories=("Cs",)))


def required(**members: Any) -> Raw:
    return to_raw({"resultType": "input_required", **members})


# Results


@given(st.dictionaries(texts, any_request), texts.map(to_raw) | st.none())
def test_what_was_written_can_be_read_back(
    requests: dict[str, ServerRequest], state: Raw | None
) -> None:
    if requests or state is not None:
        assert read_input_required(write_input_required(requests, state)) == InputRequired(
            requests, state
        )


@pytest.mark.parametrize("raw", [b"{}", b'{"content":[]}', b'{"resultType":"complete"}'])
def test_a_complete_result_requires_no_input(raw: bytes) -> None:
    assert read_input_required(Raw(raw)) is None


def test_a_state_keeps_its_bytes() -> None:
    raw = b'{"resultType":"input_required","requestState":"\\u0061\\/ \xc3\xa9"}'
    read = read_input_required(Raw(raw))
    assert read is not None
    assert read.state is not None
    assert bytes(read.state) == b'"\\u0061\\/ \xc3\xa9"'
    params = Params(to_raw({"name": "x"}))
    put_retry(params, {}, read.state)
    assert bytes(params.encode()) == b'{"name":"x","requestState":"\\u0061\\/ \xc3\xa9"}'


def test_a_state_alone_means_retry() -> None:
    for raw in (required(requestState="s"), required(requestState="s", inputRequests={})):
        assert read_input_required(raw) == InputRequired({}, Raw(b'"s"'))
    assert from_raw(write_input_required({}, "s")) == {
        "resultType": "input_required",
        "requestState": "s",
    }


def test_null_counts_as_absent() -> None:
    raw = required(requestState=None, inputRequests={"k": {"method": LIST_ROOTS}})
    assert read_input_required(raw) == InputRequired({"k": ROOTS}, None)
    assert read_input_required(required(requestState="s", inputRequests=None)) is not None


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (Raw(b"[]"), "malformed: Expected"),
        (Raw(b'{"resultType":"complete","resultType":"x"}'), "duplicate member 'resultType'"),
        (to_raw({"resultType": "task", "taskId": "t"}), "unknown 'resultType'"),
        (to_raw({"resultType": 7}), "unknown 'resultType'"),
        (required(), "expected 'inputRequests' or 'requestState'"),
        (required(inputRequests={}), "expected 'inputRequests' or 'requestState'"),
        (required(requestState=7), "a string as 'requestState'"),
        (required(inputRequests=[]), "malformed: Expected"),
        (required(inputRequests={"k": 7}), r"inputRequests\['k'\]: .* an object"),
        (required(inputRequests={"k": {}}), r"inputRequests\['k'\]: .* missing 'method'"),
        (required(inputRequests={"k": {"method": 7}}), r"inputRequests\['k'\]: .* 'method'"),
        (required(inputRequests={"k": {"method": "ping"}}), "Method not found: ping"),
        (required(inputRequests={"k": {"method": ELICIT, "params": 7}}), "an object as params"),
        (
            required(inputRequests={"k": {"method": ELICIT, "params": {"mode": "x"}}}),
            "'form' or 'url'",
        ),
        (
            required(inputRequests={str(n): {"method": LIST_ROOTS} for n in range(65)}),
            f"at most {MAX_INPUT_REQUESTS} input requests, got 65",
        ),
    ],
)
def test_any_other_result_type_is_a_server_error(raw: Raw, reason: str) -> None:
    with pytest.raises(RpcError, match=reason) as caught:
        read_input_required(raw)
    assert caught.value.code == -32603


# Retried calls


@given(
    st.dictionaries(texts, st.sampled_from([Raw(b'{"roots": []}'), Raw(b"{}")])),
    texts | st.none(),
)
def test_input_responses_are_read(responses: dict[str, Raw], state: str | None) -> None:
    params = Params(Raw(b'{"name":"x","arguments":{"a": 1.0},"inputResponses":{"old":{}}}'))
    put_retry(params, responses, None if state is None else to_raw(state))
    read = read_retry(Params(params.encode()))
    assert read == (None if not responses and state is None else RetryParams(responses, state))
    strip_retry(params)
    assert bytes(params.encode()) == b'{"name":"x","arguments":{"a": 1.0}}'


@pytest.mark.parametrize(
    "raw", [b"{}", b'{"name":"x"}', b'{"inputResponses":null,"requestState":null}']
)
def test_a_first_call_has_no_responses(raw: bytes) -> None:
    assert read_retry(Params(Raw(raw))) is None


@pytest.mark.parametrize(
    ("raw", "field", "reason"),
    [
        (b'{"requestState":7}', "requestState", "a string"),
        (b'{"requestState":{}}', "requestState", "a string"),
        (b'{"inputResponses":[]}', "inputResponses", "an object of input responses"),
        (b'{"inputResponses":"x"}', "inputResponses", "an object of input responses"),
        (b'{"inputResponses":{"k":7}}', "inputResponses", "an object as 'k'"),
        (b'{"inputResponses":{"k":{},"k":{}}}', "inputResponses", "duplicate member 'k'"),
    ],
)
def test_malformed_responses_are_rejected(raw: bytes, field: str, reason: str) -> None:
    with pytest.raises(RpcError, match=reason) as caught:
        read_retry(Params(Raw(raw)))
    assert (caught.value.code, caught.value.data) == (-32602, {"field": field})


# URL elicitations


def elicitation(**members: Any) -> dict[str, Any]:
    return {"mode": "url", "message": "Go", "url": "https://x.example", **members}


def test_a_url_elicitation_error_becomes_input_requests() -> None:
    data = {"elicitations": [elicitation(elicitationId="a"), elicitation(elicitationId="b", x=1)]}
    for given_data in (data, to_raw(data)):
        requests = read_url_elicitations(RpcError(-32042, "Visit", given_data))
        assert requests is not None
        result = read_members(write_input_required(requests, "s"))
        assert from_raw(result["inputRequests"]) == {
            "a": {"method": ELICIT, "params": elicitation()},
            "b": {"method": ELICIT, "params": elicitation(x=1)},
        }
        assert missing_capability_error(requests["a"]).data == {
            "requiredCapabilities": {"elicitation": {"url": {}}}
        }


@pytest.mark.parametrize(
    "error",
    [
        RpcError(-32042, "no"),
        RpcError(-32041, "no", {"elicitations": [elicitation(elicitationId="a")]}),
        RpcError(-32042, "no", 7),
        RpcError(-32042, "no", {}),
        RpcError(-32042, "no", {"elicitations": {}}),
        RpcError(-32042, "no", {"elicitations": []}),
        RpcError(-32042, "no", {"elicitations": [7]}),
        RpcError(-32042, "no", {"elicitations": [elicitation()]}),
        RpcError(-32042, "no", {"elicitations": [elicitation(elicitationId="a", url=7)]}),
        RpcError(-32042, "no", {"elicitations": [elicitation(elicitationId="a", mode="form")]}),
        RpcError(-32042, "no", {"elicitations": [elicitation(elicitationId="a")] * 2}),
        RpcError(
            -32042, "no", {"elicitations": [elicitation(elicitationId=str(n)) for n in range(65)]}
        ),
    ],
)
def test_other_errors_are_no_url_elicitation(error: RpcError) -> None:
    assert read_url_elicitations(error) is None


def test_a_request_without_params_has_none_on_the_wire() -> None:
    assert ROOTS.params is UNSET
    assert bytes(write_input_required({"k": ROOTS})) == (
        b'{"resultType":"input_required","inputRequests":{"k":{"method":"roots/list"}}}'
    )


def test_responses_are_set_with_or_without_a_state() -> None:
    params = Params(Raw(b'{"inputResponses":{"a":{}},"requestState":"s"}'))
    found = read_retry(params)
    assert found is not None
    assert (set(found.input_responses), found.state) == ({"a"}, "s")
    put_retry(params, {}, None)
    assert bytes(params.encode()) == b"{}"
    put_retry(params, {"b": Raw(b"{}")}, Raw(b'"t"'))
    assert bytes(params.encode()) == b'{"inputResponses":{"b":{}},"requestState":"t"}'


def test_the_state_of_a_result_that_requires_input_is_replaced() -> None:
    result = required(requestState="theirs", extra=1.0)
    replaced = replace_state(result, lambda state: f"ours({from_raw(state)})")
    assert from_raw(replaced) == {
        "resultType": "input_required",
        "requestState": "ours(theirs)",
        "extra": 1.0,
    }


@pytest.mark.parametrize(
    "result",
    [
        b'{"content":[]}',
        b'{"resultType":"input_required","inputRequests":{}}',
        b'{"resultType":"input_required","requestState":null}',
        b'{"resultType":"complete","requestState":"x","text":"input_required"}',
        b'{"requestState":"x","text":"input_required"}',
        b'["input_required"]',
        b'{"resultType":"input_required","requestState":"x","requestState":"y"}',
    ],
)
def test_a_result_without_a_state_that_is_replaced_stays_as_it_is(result: bytes) -> None:
    assert bytes(replace_state(Raw(result), lambda _: "ours")) == result


@pytest.mark.parametrize(
    ("result", "starts"),
    [
        (b'{"resultType":"complete","content":[]}', True),
        (b'{"resultType":"complete"}', True),
        (b'{"resultType":"input_required"}', False),
        (b'{"content":[],"resultType":"complete"}', False),
        (b"{}", False),
    ],
)
def test_a_result_may_begin_by_saying_that_it_is_complete(result: bytes, starts: bool) -> None:
    assert starts_complete(Raw(result)) is starts
