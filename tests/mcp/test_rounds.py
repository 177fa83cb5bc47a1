"""Results that ask, and calls that answer: read strictly, written back to the byte."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.jsonrpc import UNSET, Raw, RpcError, from_raw, members, to_raw
from trunkline.mcp.meta import Params
from trunkline.mcp.questions import ELICIT, LIST_ROOTS, SAMPLE, Question, missing_capability
from trunkline.mcp.rounds import (
    MAX_QUESTIONS,
    Required,
    Retry,
    put_retry,
    read_required,
    read_retry,
    strip_retry,
    url_required,
    write_required,
)

ROOTS = Question(LIST_ROOTS)
FORM = Question(ELICIT, Raw(b'{"mode":"form", "message":"?"}'))

questions = st.sampled_from([ROOTS, FORM, Question(SAMPLE, Raw(b'{"messages": [1.0]}'))])
texts = st.text(st.characters(exclude_categories=("Cs",)))


def required(**members: Any) -> Raw:
    return to_raw({"resultType": "input_required", **members})


# Results that ask


@given(st.dictionaries(texts, questions), texts.map(to_raw) | st.none())
def test_what_was_written_is_read(asked: dict[str, Question], state: Raw | None) -> None:
    if asked or state is not None:
        assert read_required(write_required(asked, state)) == Required(asked, state)


@pytest.mark.parametrize("raw", [b"{}", b'{"content":[]}', b'{"resultType":"complete"}'])
def test_a_complete_result_asks_nothing(raw: bytes) -> None:
    assert read_required(Raw(raw)) is None


def test_a_state_stays_to_the_byte() -> None:
    raw = b'{"resultType":"input_required","requestState":"\\u0061\\/ \xc3\xa9"}'
    read = read_required(Raw(raw))
    assert read is not None
    assert read.state is not None
    assert bytes(read.state) == b'"\\u0061\\/ \xc3\xa9"'
    params = Params(to_raw({"name": "x"}))
    put_retry(params, {}, read.state)
    assert bytes(params.encode()) == b'{"name":"x","requestState":"\\u0061\\/ \xc3\xa9"}'


def test_a_state_alone_means_to_come_again() -> None:
    for raw in (required(requestState="s"), required(requestState="s", inputRequests={})):
        assert read_required(raw) == Required({}, Raw(b'"s"'))
    assert from_raw(write_required({}, "s")) == {
        "resultType": "input_required",
        "requestState": "s",
    }


def test_null_is_as_good_as_nothing() -> None:
    raw = required(requestState=None, inputRequests={"k": {"method": LIST_ROOTS}})
    assert read_required(raw) == Required({"k": ROOTS}, None)
    assert read_required(required(requestState="s", inputRequests=None)) is not None


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (Raw(b"[]"), "cannot be read"),
        (Raw(b'{"resultType":"complete","resultType":"x"}'), "duplicate member 'resultType'"),
        (to_raw({"resultType": "task", "taskId": "t"}), "unknown 'resultType'"),
        (to_raw({"resultType": 7}), "unknown 'resultType'"),
        (required(), "expected 'inputRequests' or 'requestState'"),
        (required(inputRequests={}), "expected 'inputRequests' or 'requestState'"),
        (required(requestState=7), "a string as 'requestState'"),
        (required(inputRequests=[]), "cannot be read"),
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
            f"at most {MAX_QUESTIONS} questions, got 65",
        ),
    ],
)
def test_a_result_that_is_neither_is_the_servers_fault(raw: Raw, reason: str) -> None:
    with pytest.raises(RpcError, match=reason) as caught:
        read_required(raw)
    assert caught.value.code == -32603


# Calls that answer


@given(
    st.dictionaries(texts, st.sampled_from([Raw(b'{"roots": []}'), Raw(b"{}")])),
    texts | st.none(),
)
def test_what_was_answered_is_read(answers: dict[str, Raw], state: str | None) -> None:
    params = Params(Raw(b'{"name":"x","arguments":{"a": 1.0},"inputResponses":{"old":{}}}'))
    put_retry(params, answers, None if state is None else to_raw(state))
    read = read_retry(Params(params.encode()))
    assert read == (None if not answers and state is None else Retry(answers, state))
    strip_retry(params)
    assert bytes(params.encode()) == b'{"name":"x","arguments":{"a": 1.0}}'


@pytest.mark.parametrize(
    "raw", [b"{}", b'{"name":"x"}', b'{"inputResponses":null,"requestState":null}']
)
def test_a_first_call_answers_nothing(raw: bytes) -> None:
    assert read_retry(Params(Raw(raw))) is None


@pytest.mark.parametrize(
    ("raw", "field", "reason"),
    [
        (b'{"requestState":7}', "requestState", "a string"),
        (b'{"requestState":{}}', "requestState", "a string"),
        (b'{"inputResponses":[]}', "inputResponses", "an object of answers"),
        (b'{"inputResponses":"x"}', "inputResponses", "an object of answers"),
        (b'{"inputResponses":{"k":7}}', "inputResponses", "an object as 'k'"),
        (b'{"inputResponses":{"k":{},"k":{}}}', "inputResponses", "duplicate member 'k'"),
    ],
)
def test_what_answers_nothing_is_refused(raw: bytes, field: str, reason: str) -> None:
    with pytest.raises(RpcError, match=reason) as caught:
        read_retry(Params(Raw(raw)))
    assert (caught.value.code, caught.value.data) == (-32602, {"field": field})


# Addresses to visit first


def visit(**members: Any) -> dict[str, Any]:
    return {"mode": "url", "message": "Go", "url": "https://x.example", **members}


def test_an_error_that_wants_a_visit_becomes_a_question() -> None:
    data = {"elicitations": [visit(elicitationId="a"), visit(elicitationId="b", x=1)]}
    for given_data in (data, to_raw(data)):
        asked = url_required(RpcError(-32042, "Visit", given_data))
        assert asked is not None
        result = members(write_required(asked, "s"))
        assert from_raw(result["inputRequests"]) == {
            "a": {"method": ELICIT, "params": visit()},
            "b": {"method": ELICIT, "params": visit(x=1)},
        }
        assert missing_capability(asked["a"]).data == {
            "requiredCapabilities": {"elicitation": {"url": {}}}
        }


@pytest.mark.parametrize(
    "error",
    [
        RpcError(-32042, "no"),
        RpcError(-32041, "no", {"elicitations": [visit(elicitationId="a")]}),
        RpcError(-32042, "no", 7),
        RpcError(-32042, "no", {}),
        RpcError(-32042, "no", {"elicitations": {}}),
        RpcError(-32042, "no", {"elicitations": []}),
        RpcError(-32042, "no", {"elicitations": [7]}),
        RpcError(-32042, "no", {"elicitations": [visit()]}),
        RpcError(-32042, "no", {"elicitations": [visit(elicitationId="a", url=7)]}),
        RpcError(-32042, "no", {"elicitations": [visit(elicitationId="a", mode="form")]}),
        RpcError(-32042, "no", {"elicitations": [visit(elicitationId="a")] * 2}),
        RpcError(-32042, "no", {"elicitations": [visit(elicitationId=str(n)) for n in range(65)]}),
    ],
)
def test_any_other_error_is_none(error: RpcError) -> None:
    assert url_required(error) is None


def test_a_question_without_params_has_none_on_the_wire() -> None:
    assert ROOTS.params is UNSET
    assert bytes(write_required({"k": ROOTS})) == (
        b'{"resultType":"input_required","inputRequests":{"k":{"method":"roots/list"}}}'
    )


def test_an_answer_is_read_and_put_with_its_state_or_without() -> None:
    params = Params(Raw(b'{"inputResponses":{"a":{}},"requestState":"s"}'))
    found = read_retry(params)
    assert found is not None
    assert (set(found.answers), found.state) == ({"a"}, "s")
    put_retry(params, {}, None)
    assert bytes(params.encode()) == b"{}"
    put_retry(params, {"b": Raw(b"{}")}, Raw(b'"t"'))
    assert bytes(params.encode()) == b'{"inputResponses":{"b":{}},"requestState":"t"}'
