"""Tasks of both eras: read into one value, and hidden from clients."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.jsonrpc import UNSET, Raw, RpcError, from_raw, read_members, to_raw
from trunkline.mcp.capabilities import TASKS_EXTENSION
from trunkline.mcp.features import strip_execution
from trunkline.mcp.params import CAPABILITIES_KEY, META_PREFIX, Params
from trunkline.mcp.server_requests import LIST_ROOTS, ServerRequest
from trunkline.mcp.tasks import (
    MAX_TASK_ID_LENGTH,
    PollIntervals,
    TaskState,
    has_content,
    has_tasks_extension,
    lost_task_error,
    needs_tasks_extension,
    read_created_task,
    read_task_state,
    related_task_id,
    set_tasks_extension,
    strip_related_task,
    strip_task_params,
    supports_tasks,
    task_result,
)
from trunkline.mcp.versions import SESSION_REVISIONS, V2025_11_25, V2026_07_28, Era

RELATED = META_PREFIX + "related-task"
HANDSHAKE, ENVELOPE = Era.SESSION, Era.STATELESS
INTERVALS = PollIntervals()
WORKING = TaskState("t", "working", INTERVALS.default)

texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=8)
anything: Any = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


def error_of(doing: Any, *args: Any) -> RpcError:
    with pytest.raises(RpcError) as caught:
        doing(*args)
    return caught.value


def a_task(**sent: Any) -> dict[str, Any]:
    return {"taskId": "t", "status": "working", **sent}


def created(era: Era, **sent: Any) -> Raw:
    if era is HANDSHAKE:
        return to_raw({"task": a_task(**sent)})
    return to_raw({"resultType": "task", **a_task(**sent)})


# Task support


@pytest.mark.parametrize(
    ("execution", "needed"),
    [
        ({"taskSupport": "required"}, True),
        ({"taskSupport": "optional"}, False),
        ({"taskSupport": "forbidden"}, False),
        ({}, False),
        (None, False),
        ("required", False),
        ([1], False),
    ],
)
def test_a_tool_requires_a_task_only_if_it_says_so(execution: Any, needed: bool) -> None:
    definition = to_raw({"name": "t", "execution": execution, "x": 1})
    kept, needs_task = strip_execution(definition)
    assert (from_raw(kept), needs_task) == ({"name": "t", "x": 1}, needed)


def test_a_tool_without_execution_keeps_its_bytes() -> None:
    definition = Raw(b'{ "name": "t", "n": 1.0 }')
    assert strip_execution(definition) == (definition, False)


def test_a_session_server_supports_tasks_if_declared_for_tool_calls() -> None:
    able: dict[str, Any] = {"tasks": {"requests": {"tools": {"call": {}}}}}
    assert [v for v in SESSION_REVISIONS if supports_tasks(v, able)] == [V2025_11_25]
    other: list[Any] = [{}, {"tasks": {}}, {"tasks": {"requests": {"tools": {}}}}, {"tasks": [1]}]
    for declared in other:
        assert not supports_tasks(V2025_11_25, declared)


def test_a_stateless_server_supports_tasks_if_it_declares_the_extension() -> None:
    assert supports_tasks(V2026_07_28, {"extensions": {TASKS_EXTENSION: {}}})
    assert not supports_tasks(V2026_07_28, {"tasks": {"requests": {"tools": {"call": {}}}}})
    assert not has_tasks_extension({"extensions": 7})


def missing(required: Any, code: int = -32021) -> RpcError:
    return RpcError(code, "no", to_raw({"requiredCapabilities": required}))


def test_an_error_for_only_the_missing_extension_is_recognised() -> None:
    assert needs_tasks_extension(missing({"extensions": {TASKS_EXTENSION: {}}}))
    assert not needs_tasks_extension(missing({"extensions": {TASKS_EXTENSION: {}}}, -32602))
    assert not needs_tasks_extension(missing({"extensions": {TASKS_EXTENSION: {}, "x/y": {}}}))
    assert not needs_tasks_extension(missing({"extensions": {TASKS_EXTENSION: {}}, "sampling": {}}))
    assert not needs_tasks_extension(missing({"sampling": {}}))
    assert not needs_tasks_extension(missing([TASKS_EXTENSION]))
    assert not needs_tasks_extension(RpcError(-32021, "no"))
    assert not needs_tasks_extension(RpcError(-32021, "no", to_raw("data")))
    assert not needs_tasks_extension(TimeoutError())
    assert not needs_tasks_extension(None)


@given(st.dictionaries(texts, anything) | anything, st.booleans())
def test_the_extension_is_set_and_removed_and_the_rest_stays(sent: Any, declared: bool) -> None:
    params = Params(to_raw({"name": "n", "_meta": {CAPABILITIES_KEY: sent, "x": 1}}))
    set_tasks_extension(params, declared)
    found: Any = from_raw(params.meta[CAPABILITIES_KEY])
    assert has_tasks_extension(found) is declared
    if isinstance(sent, dict):
        assert found | {"extensions": 0} == sent | {"extensions": 0}
    assert params.meta["x"] == Raw(b"1")


def test_other_extensions_are_kept_and_none_invented() -> None:
    meta = {
        CAPABILITIES_KEY: {
            "sampling": {},
            "extensions": {TASKS_EXTENSION: {"x": 1}, "a/b": {"n": 1}},
        }
    }
    params = Params(to_raw({"_meta": meta}))
    set_tasks_extension(params, declared=False)
    assert from_raw(params.meta[CAPABILITIES_KEY]) == {
        "sampling": {},
        "extensions": {"a/b": {"n": 1}},
    }
    bare = Params(to_raw({}))
    set_tasks_extension(bare, declared=False)
    assert from_raw(bare.meta[CAPABILITIES_KEY]) == {}


# Task messages


@pytest.mark.parametrize("era", [HANDSHAKE, ENVELOPE])
def test_both_forms_give_the_same_task(era: Era) -> None:
    sent = {"pollInterval": 2500, "pollIntervalMs": 2500, "statusMessage": "on it"}
    assert read_created_task(created(era, **sent), era) == TaskState("t", "working", 2.5, "on it")


@pytest.mark.parametrize(
    ("era", "result"),
    [
        (HANDSHAKE, {"content": []}),
        (HANDSHAKE, {"content": [], "task": a_task()}),
        (HANDSHAKE, {"structuredContent": {}, "task": a_task()}),
        (HANDSHAKE, {"task": "t"}),
        (HANDSHAKE, {"resultType": "task", **a_task()}),
        (ENVELOPE, {"content": [], "resultType": "complete"}),
        (ENVELOPE, {"resultType": "input_required", "taskId": "t"}),
        (ENVELOPE, {"task": a_task()}),
    ],
)
def test_an_ordinary_result_is_no_task(era: Era, result: Any) -> None:
    assert read_created_task(to_raw(result), era) is None


@pytest.mark.parametrize("era", [HANDSHAKE, ENVELOPE])
@pytest.mark.parametrize(
    "sent",
    [
        {"taskId": None},
        {"taskId": 7},
        {"taskId": ""},
        {"taskId": "x" * (MAX_TASK_ID_LENGTH + 1)},
        {"status": "submitted"},
        {"status": ["working"]},
        {"status": None},
    ],
)
def test_a_task_without_an_id_or_a_known_status_is_malformed(era: Era, sent: Any) -> None:
    error = error_of(read_created_task, created(era, **sent), era)
    assert error.code == -32603
    assert "malformed: in its task, expected" in error.message


@pytest.mark.parametrize("raw", [b"[]", b'{"status":"working","status":"failed"}', b'{"status":1}'])
def test_a_malformed_task_state_is_a_server_error(raw: bytes) -> None:
    assert error_of(read_task_state, WORKING, Raw(raw), ENVELOPE).code == -32603


def test_a_result_that_is_no_object_is_a_server_error() -> None:
    assert error_of(read_created_task, Raw(b"[]"), HANDSHAKE).code == -32603


def test_a_task_keeps_the_id_of_its_creation() -> None:
    found = read_task_state(WORKING, to_raw({"taskId": "other", "status": "failed"}), HANDSHAKE)
    assert (found.id, found.status, found.is_finished, WORKING.is_finished) == (
        "t",
        "failed",
        True,
        False,
    )


def test_inlined_results_of_stateless_servers_are_read() -> None:
    done = read_task_state(
        WORKING, Raw(b'{"status":"completed","result":{"content": [ ]}}'), ENVELOPE
    )
    assert done.result is not None
    assert bytes(done.result) == b'{"content": [ ]}'
    failed = {"status": "failed", "error": {"code": 7, "message": "boom", "data": [1]}}
    error = read_task_state(WORKING, to_raw(failed), ENVELOPE).error
    assert error == RpcError(7, "boom", to_raw([1]))
    edited = {"status": "input_required", "inputRequests": {"k": {"method": LIST_ROOTS}}}
    assert read_task_state(WORKING, to_raw(edited), ENVELOPE).input_requests == {
        "k": ServerRequest(LIST_ROOTS)
    }
    late = edited | {"status": "working"}
    assert read_task_state(WORKING, to_raw(late), ENVELOPE).input_requests == {}
    bad = {"status": "input_required", "inputRequests": {"k": {"method": "tools/call"}}}
    assert "inputRequests['k']" in error_of(read_task_state, WORKING, to_raw(bad), ENVELOPE).message


@pytest.mark.parametrize("sent", [{}, {"code": True, "message": 1}, {"code": "x"}])
def test_a_task_error_without_a_code_is_internal(sent: Any) -> None:
    state = read_task_state(WORKING, to_raw({"status": "failed", "error": sent}), ENVELOPE)
    assert state.error == RpcError(-32603, "")


@given(anything)
def test_the_poll_interval_is_bounded(sent: Any) -> None:
    for era in Era:
        state = read_task_state(
            WORKING,
            to_raw({"status": "working", "pollInterval": sent, "pollIntervalMs": sent}),
            era,
        )
        assert INTERVALS.minimum <= state.poll_interval <= INTERVALS.maximum


@pytest.mark.parametrize(
    ("sent", "seconds"),
    [
        (b"2000", 2.0),
        (b"250.5", 0.2505),
        (b"0", INTERVALS.minimum),
        (b"1e300", INTERVALS.maximum),
        (b"-5", INTERVALS.default),
        (b"null", INTERVALS.default),
        (b"true", INTERVALS.default),
        (b'"1000"', INTERVALS.default),
        (b"1e999", INTERVALS.default),
    ],
)
def test_a_malformed_poll_interval_gives_the_default(sent: bytes, seconds: float) -> None:
    raw = Raw(b'{"status":"working","pollIntervalMs":' + sent + b"}")
    assert read_task_state(WORKING, raw, ENVELOPE).poll_interval == seconds


# Results


def test_a_finished_task_has_a_result_or_an_error() -> None:
    result, error = Raw(b"{}"), RpcError(7, "boom")
    assert task_result(WORKING._replace(status="completed", result=result)) is result
    assert error_of(task_result, WORKING._replace(status="failed", error=error)) is error
    for status, message, sent in (
        ("completed", None, "without a result"),
        ("failed", None, "the task failed"),
        ("failed", "no disk", "the task failed: no disk"),
        ("cancelled", "too long", "the server cancelled the task: too long"),
    ):
        task = WORKING._replace(status=status, status_message=message)
        assert sent in error_of(task_result, task).message
    assert lost_task_error(RpcError(-32602, "who?")).message.endswith(
        "the server no longer knows the task: who?"
    )


def test_an_empty_result_has_no_content() -> None:
    assert has_content(Raw(b'{"content":[]}'))
    assert has_content(Raw(b'{"structuredContent":1}'))
    assert not has_content(Raw(b'{"_meta":{}}'))
    assert not has_content(Raw(b"[]"))


@pytest.mark.parametrize(
    ("meta", "kept"),
    [
        ({RELATED: {"taskId": "t"}}, None),
        ({RELATED: {"taskId": "t"}, "x": 1}, {"x": 1}),
        ({"x": "related-task"}, {"x": "related-task"}),
    ],
)
def test_a_result_does_not_mention_its_task(meta: Any, kept: Any) -> None:
    found: Any = from_raw(strip_related_task(to_raw({"content": [], "_meta": meta})))
    assert found == ({"content": []} if kept is None else {"content": [], "_meta": kept})


def test_messages_without_a_task_keep_their_bytes() -> None:
    for raw in (
        b'{"content": [ ], "_meta": {}}',
        b'["related-task"]',
        b'{"_meta":["related-task"]}',
    ):
        assert bytes(strip_related_task(Raw(raw))) == raw


def test_server_requests_do_not_mention_tasks() -> None:
    edited = to_raw(
        {"message": "?", "task": {"ttl": 1}, "_meta": {RELATED: {"taskId": "t"}, "x": 1}}
    )
    plain = strip_task_params(edited)
    assert isinstance(plain, Raw)
    assert {key: from_raw(raw) for key, raw in read_members(plain).items()} == {
        "message": "?",
        "_meta": {"x": 1},
    }
    assert strip_task_params(UNSET) is UNSET
    same = Raw(b'{"message": "?"}')
    assert strip_task_params(same) is same


@pytest.mark.parametrize(
    ("params", "id"),
    [
        ({"_meta": {RELATED: {"taskId": "t"}}}, "t"),
        ({"_meta": {RELATED: {"taskId": 1}}}, None),
        ({"_meta": {RELATED: "t"}}, None),
        ({"_meta": {"x": "related-task"}}, None),
        ({"_meta": ["related-task"]}, None),
        ({"message": "?"}, None),
    ],
)
def test_a_server_request_names_its_task(params: Any, id: str | None) -> None:
    assert related_task_id(to_raw(params)) == id
    assert related_task_id(UNSET) is None


def test_other_extensions_stay_when_tasks_are_removed() -> None:
    sent = {"_meta": {CAPABILITIES_KEY: {"extensions": {TASKS_EXTENSION: {}, "x/y": {"a": 1}}}}}
    params = Params(to_raw(sent))
    set_tasks_extension(params, declared=False)
    assert from_raw(params.meta[CAPABILITIES_KEY], dict[str, Any]) == {
        "extensions": {"x/y": {"a": 1}}
    }
    set_tasks_extension(params, declared=True)
    found = from_raw(params.meta[CAPABILITIES_KEY], dict[str, Any])
    assert found == {"extensions": {"x/y": {"a": 1}, TASKS_EXTENSION: {}}}
