"""Tasks: a call that is answered with a task at once, and with its result later, in either era.

    2025-11-25  {"task": {"taskId", "status", "pollInterval"}}  ──┐
                                                                  ├──> TaskState ──> task_result
    2026-07-28  {"resultType": "task", "taskId", "status", …}   ──┘

Tasks are not offered to clients. A client sees an ordinary call without any mention of tasks.

Rules upheld here:
1. A server is polled as often as it asks for, within limits.
2. A malformed task is the server's error, which says what was expected.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from msgspec import Struct

from trunkline.jsonrpc import INTERNAL_ERROR, UNSET, Raw, RpcError, read_members, to_raw
from trunkline.jsonrpc.raw_json import UnsetType, first_byte
from trunkline.mcp.capabilities import TASKS_EXTENSION
from trunkline.mcp.errors import MISSING_CAPABILITY
from trunkline.mcp.input_required import read_input_requests
from trunkline.mcp.params import (
    CAPABILITIES_KEY,
    META_PREFIX,
    Params,
    as_object,
    decode_value,
    try_members,
)
from trunkline.mcp.results import malformed_result
from trunkline.mcp.server_requests import ServerRequest
from trunkline.mcp.versions import Era, Revision

# The longest task id that is accepted, in characters.
MAX_TASK_ID_LENGTH = 4096

# Without `ttl` some servers keep results for ever. An hour is longer than any call may take.
# The `task` member of a 2025-11-25 call.
TASK_REQUEST = Raw(b'{"ttl":3600000}')

_RELATED_TASK_KEYS = frozenset((META_PREFIX + "related-task",))
_RELATED_TASK_MARKER = b"related-task"
_TASK_STATUSES = frozenset(("working", "input_required", "completed", "failed", "cancelled"))
_FINAL_STATUSES = frozenset(("completed", "failed", "cancelled"))
_CONTENT_KEYS = frozenset(("content", "structuredContent"))
_POLL_INTERVAL_KEYS = {Era.SESSION: "pollInterval", Era.STATELESS: "pollIntervalMs"}
_NULL, _EMPTY_OBJECT, _TASK_KEY = Raw(b"null"), Raw(b"{}"), "task"
_OBJECT = ord("{")


class PollIntervals(Struct, frozen=True, kw_only=True):
    """The bounds for the number of seconds between two polls of a task."""

    minimum: float = 0.1
    default: float = 1.0  # for a task without a valid interval
    maximum: float = 30.0


_DEFAULT_INTERVALS = PollIntervals()


class TaskState(NamedTuple):
    """The state of a task, as one message reports it."""

    id: str
    status: str
    poll_interval: float
    status_message: str | None = None
    result: Raw | None = None
    error: RpcError | None = None
    input_requests: Mapping[str, ServerRequest] = {}

    @property
    def is_finished(self) -> bool:
        """Whether the task has ended, with success or without."""
        return self.status in _FINAL_STATUSES


# Task support


def supports_tasks(revision: Revision, capabilities: Mapping[str, Any]) -> bool:
    """Return whether a server declared that its tools can be called as tasks."""
    if revision.is_stateless:
        return has_tasks_extension(capabilities)
    if not revision.has_tasks:
        return False
    requests = as_object(as_object(capabilities.get("tasks")).get("requests"))
    return "call" in as_object(requests.get("tools"))


def has_tasks_extension(capabilities: Mapping[str, Any]) -> bool:
    """Return whether a stateless client or server declared the tasks extension."""
    return TASKS_EXTENSION in as_object(capabilities.get("extensions"))


def needs_tasks_extension(error: BaseException | None) -> bool:
    """Return whether a call failed only because the tasks extension was not declared."""
    if not isinstance(error, RpcError) or error.code != MISSING_CAPABILITY or error.data is UNSET:
        return False
    required = as_object(as_object(decode_value(to_raw(error.data))).get("requiredCapabilities"))
    extensions = as_object(required.get("extensions"))
    return list(required) == ["extensions"] and list(extensions) == [TASKS_EXTENSION]


def set_tasks_extension(params: Params, declared: bool) -> None:
    """Declare in an envelope that the gateway supports tasks, or that it does not."""
    capabilities = try_members(params.meta.get(CAPABILITIES_KEY, _EMPTY_OBJECT)) or {}
    extensions = try_members(capabilities.pop("extensions", _EMPTY_OBJECT)) or {}
    extensions.pop(TASKS_EXTENSION, None)
    if declared:
        extensions[TASKS_EXTENSION] = _EMPTY_OBJECT
    if extensions:
        capabilities["extensions"] = to_raw(extensions)
    params.put_meta(CAPABILITIES_KEY, capabilities)


# Task messages


def read_created_task(
    result: Raw, era: Era, intervals: PollIntervals = _DEFAULT_INTERVALS
) -> TaskState | None:
    """Read the task in a call's result; None if it has none; raises MalformedResult."""
    try:
        found = read_members(result)
        if era is Era.STATELESS:
            is_task = decode_value(found.get("resultType", _NULL)) == _TASK_KEY
            return _parse_task(found, era, intervals) if is_task else None
        if found.keys() & _CONTENT_KEYS or first_byte(found.get(_TASK_KEY, _NULL)) != _OBJECT:
            return None
        return _parse_task(read_members(found[_TASK_KEY]), era, intervals)
    except ValueError as error:
        raise _unreadable_task(error) from None


def read_task_state(
    task: TaskState, result: Raw, era: Era, intervals: PollIntervals = _DEFAULT_INTERVALS
) -> TaskState:
    """Read the result of `tasks/get`; raises MalformedResult."""
    try:
        members = read_members(result) | {"taskId": to_raw(task.id)}
        return _parse_task(members, era, intervals)
    except ValueError as error:
        raise _unreadable_task(error) from None


def _parse_task(found: dict[str, Raw], era: Era, intervals: PollIntervals) -> TaskState:
    id, status = (decode_value(found.get(key, _NULL)) for key in ("taskId", "status"))
    if not isinstance(id, str) or not 0 < len(id) <= MAX_TASK_ID_LENGTH:
        raise ValueError(f"expected a string of up to {MAX_TASK_ID_LENGTH} characters as 'taskId'")
    if not isinstance(status, str) or status not in _TASK_STATUSES:
        raise ValueError(f"expected one of {', '.join(sorted(_TASK_STATUSES))} as 'status'")
    message = decode_value(found.get("statusMessage", _NULL))
    poll_interval = _poll_interval(found, era, intervals)
    task = TaskState(id, status, poll_interval, message if isinstance(message, str) else None)
    if era is Era.SESSION:
        return task
    error, input_requests = found.get("error"), {}
    if status == "input_required" and "inputRequests" in found:
        input_requests = read_input_requests(found["inputRequests"])
    return task._replace(
        result=found.get("result"),
        error=None if error is None else _read_error(error),
        input_requests=input_requests,
    )


def _poll_interval(found: dict[str, Raw], era: Era, intervals: PollIntervals) -> float:
    value = decode_value(found.get(_POLL_INTERVAL_KEYS[era], _NULL))
    if not isinstance(value, int | float) or isinstance(value, bool) or not value >= 0:
        return intervals.default  # absent or malformed
    return min(max(min(value, 1e6) / 1000, intervals.minimum), intervals.maximum)


def _read_error(raw: Raw) -> RpcError:
    found = read_members(raw)
    code, message = (decode_value(found.get(key, _NULL)) for key in ("code", "message"))
    if not isinstance(code, int) or isinstance(code, bool):
        code = INTERNAL_ERROR
    return RpcError(code, message if isinstance(message, str) else "", found.get("data", UNSET))


# Results


def task_result(task: TaskState) -> Raw:
    """Return the result of a finished task; raises RpcError if there is none."""
    if task.status == "completed" and task.result is not None:
        return task.result
    if task.status == "failed" and task.error is not None:
        raise task.error
    detail = "" if task.status_message is None else f": {task.status_message}"
    if task.status == "completed":
        raise malformed_result("a completed task without a result")
    text = "the task failed" if task.status == "failed" else "the server cancelled the task"
    raise RpcError.internal_error(text + detail)


def lost_task_error(error: RpcError) -> RpcError:
    """Return the error for a client whose task the server no longer knows."""
    return RpcError.internal_error(f"the server no longer knows the task: {error.message}")


def has_content(result: Raw) -> bool:
    """Return whether a tool's result has content. Some servers return an empty object instead."""
    return bool((try_members(result) or {}).keys() & _CONTENT_KEYS)


def strip_related_task(result: Raw) -> Raw:
    """Return a result without the mention of its task."""
    if _RELATED_TASK_MARKER not in bytes(result):
        return result
    found = try_members(result) or {}
    meta = try_members(found.get("_meta", _EMPTY_OBJECT)) or {}
    if not meta.keys() & _RELATED_TASK_KEYS:
        return result
    kept = {key: value for key, value in meta.items() if key not in _RELATED_TASK_KEYS}
    del found["_meta"]
    return to_raw(found | {"_meta": kept} if kept else found)


def strip_task_params(params: Raw | UnsetType) -> Raw | UnsetType:
    """Return the params of a server request without task members; raises Invalid params."""
    if params is UNSET or b"task" not in bytes(params):
        return params
    edited = Params(params)
    edited.drop(_TASK_KEY)
    edited.drop_meta(_RELATED_TASK_KEYS)
    return edited.encode()


def related_task_id(params: object) -> str | None:
    """Return the id of the task that a message relates to, or None."""
    if type(params) is not Raw or _RELATED_TASK_MARKER not in bytes(params):
        return None
    try:
        (related,) = (Params(params).meta.get(key, _NULL) for key in _RELATED_TASK_KEYS)
    except RpcError:
        return None
    id = as_object(decode_value(related)).get("taskId")
    return id if isinstance(id, str) else None


def _unreadable_task(error: ValueError) -> RpcError:
    return malformed_result(f"in its task, {error}")
