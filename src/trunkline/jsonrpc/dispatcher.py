"""Dispatcher: a table of methods for library users; payload in, payload out.

    dispatcher = Dispatcher()

    @dispatcher.method("sum")
    def add(a: int, b: int = 0) -> int: ...      [1, 2]        ──> add(1, 2)
                                                 {"a": 1}      ──> add(a=1)
                                                 {"a": "one"}  ──> Invalid params: expected `int` …

    await dispatcher.handle(b'{"jsonrpc":"2.0","id":1,"method":"sum","params":[1,2]}')

A Dispatcher is also a Handler: give it to a Connection, and calls run concurrently. A function with
a parameter of type RpcContext can send messages back on that connection. By itself a Dispatcher
knows nothing of sessions or time; `handle` runs the entries of a batch in turn.

Invariants upheld here:
1. A request gets a response; a notification and a response get none.
2. A method also runs for a notification of its name, unless `notification` registered another
   function. Its result is dropped. A function for notifications never runs for a request.
3. An exception of a function reaches the caller as the RpcError it is, or as an incident id without
   traceback, message or params. A cancellation inside the function counts as an exception; that of
   the task that awaits `handle` is passed on. Every exception in a notification is reported.
4. Params are checked against the annotations before the call. The error names places and types,
   never a value. Only functions with `*args` or `**kwargs` get unchecked JSON values.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from copy import copy
from inspect import Parameter, Signature, signature
from typing import Any, Self, TypeAlias, TypeVar, Union

import msgspec
from msgspec import Struct, defstruct
from msgspec.structs import asdict, astuple

from trunkline.jsonrpc.codec import MAX_BATCH_SIZE, MAX_PAYLOAD_BYTES, decode
from trunkline.jsonrpc.connection import Connection
from trunkline.jsonrpc.errors import (
    IncidentReporter,
    LocalProtocolError,
    RemoteProtocolError,
    RpcError,
    print_incident,
    report_incident,
    to_rpc_error,
)
from trunkline.jsonrpc.message import (
    Batch,
    ErrorResponse,
    Message,
    Notification,
    Request,
    Response,
    join_batch,
)
from trunkline.jsonrpc.peer import BatchPolicy, check_batch_policy
from trunkline.jsonrpc.raw_json import UNSET, Raw, UnsetType, first_byte
from trunkline.jsonrpc.rpc_context import RpcContext

# Calls a function with raw params.
ParamsInvoker: TypeAlias = Callable[[Raw | UnsetType], Any]

# Calls a function with raw params and a context.
ContextInvoker: TypeAlias = Callable[[Raw | UnsetType, RpcContext], Any]

# Turns raw params into positional and named arguments; raises RpcError.
_ArgumentsReader: TypeAlias = Callable[[Raw | UnsetType], tuple[Sequence[Any], dict[str, Any]]]

HandlerFunction = TypeVar("HandlerFunction", bound=Callable[..., Any])

# What a function may raise, including the CancelledError of something that it awaits.
_HANDLER_ERRORS = (Exception, asyncio.CancelledError)

_NO_PARAMS = Raw(b"{}")
_ARRAY_BYTE = ord("[")

_POSITIONAL_OR_KEYWORD = Parameter.POSITIONAL_OR_KEYWORD
_VARIADIC = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


class Dispatcher:
    """Methods by name, and the path from a payload to a method and back."""

    def __init__(
        self,
        batch_policy: BatchPolicy = "reject",
        *,
        max_payload: int = MAX_PAYLOAD_BYTES,
        max_batch: int = MAX_BATCH_SIZE,
        report: IncidentReporter = print_incident,
    ) -> None:
        """Create an empty table; `report` is called with every unexpected exception."""
        check_batch_policy(batch_policy)
        self._max_payload = max_payload
        self._max_batch = max_batch if batch_policy == "allow" else 0
        self._report = report
        self._connection: Connection | None = None
        self._method_functions = _FunctionTable()
        self._notification_functions = _FunctionTable()
        self._methods = self._method_functions.without_context  # most calls need only this

    def method(self, name: str) -> Callable[[HandlerFunction], HandlerFunction]:
        """Register the decorated function, sync or async, for requests and notifications."""
        return self._method_functions.register(name)

    def notification(self, name: str) -> Callable[[HandlerFunction], HandlerFunction]:
        """Register the decorated function, sync or async, for notifications only."""
        return self._notification_functions.register(name)

    @property
    def methods(self) -> tuple[str, ...]:
        """The names of the methods, in the order of registration."""
        return tuple(self._method_functions.names)

    def connected(self, connection: Connection) -> Self:
        """Return the same methods as the handler of `connection`; contexts then refer to it."""
        connected = copy(self)
        connected._connection = connection  # noqa: SLF001  our own
        return connected

    async def handle(self, payload: bytes | str) -> bytes | None:
        """Return the response to `payload`, or None if it gets none."""
        try:
            message = decode(payload, self._max_payload, self._max_batch)
        except RemoteProtocolError as violation:
            return violation.error_payload
        if isinstance(message, Batch):
            return await self._handle_batch(message)
        response = self._respond(message)
        return response if response is None or isinstance(response, bytes) else await response

    async def _handle_batch(self, batch: Batch) -> bytes | None:
        responses: list[bytes] = []
        for entry in batch.entries:
            response = self._respond(entry)
            if response is not None and not isinstance(response, bytes):
                response = await response
            if response is not None:
                responses.append(response)
        return join_batch(responses) if responses else None

    def _respond(
        self, entry: Message | RemoteProtocolError
    ) -> bytes | Awaitable[bytes | None] | None:
        # Respond without a coroutine of our own if the method needs none, as most do.
        if isinstance(entry, Request):
            try:
                outcome = self.called(entry)
                if hasattr(outcome, "__await__"):
                    return self._respond_later(entry, outcome)
                return Response(entry.id, outcome).encode()
            except _HANDLER_ERRORS as error:
                return self._encode_failure(entry, error)
        if isinstance(entry, Notification):
            return self.notified(entry)
        return entry.error_payload if isinstance(entry, RemoteProtocolError) else None

    async def _respond_later(self, request: Request, outcome: Awaitable[Any]) -> bytes:
        try:
            return Response(request.id, await outcome).encode()
        except _HANDLER_ERRORS as error:
            if _is_own_cancellation(error):
                raise
            return self._encode_failure(request, error)

    def called(self, request: Request) -> Any:
        """Call the method of `request`; return its result, or an awaitable of it."""
        invoke = self._methods.get(request.method)
        if invoke is not None:
            return invoke(request.params)
        invoke_with_context = self._method_functions.with_context.get(request.method)
        if invoke_with_context is None:
            raise RpcError.method_not_found(request.method)
        context = RpcContext(request.method, request.id, self._connection)
        return context.watch(invoke_with_context(request.params, context))

    def notified(self, notification: Notification) -> Awaitable[None] | None:
        """Call the function for `notification`; its exceptions are only reported."""
        try:
            outcome = self._invoke_for(notification)
        except _HANDLER_ERRORS as error:
            report_incident(error, notification.method, self._report)
            return None
        if not hasattr(outcome, "__await__"):
            return None
        return self._finish_notification(notification, outcome)

    def _invoke_for(self, notification: Notification) -> Any:
        name = notification.method
        for table in (self._notification_functions, self._method_functions):
            if (invoke := table.without_context.get(name)) is not None:
                return invoke(notification.params)
            if (invoke_with_context := table.with_context.get(name)) is not None:
                context = RpcContext(name, UNSET, self._connection)
                return context.watch(invoke_with_context(notification.params, context))
        return None

    async def _finish_notification(
        self, notification: Notification, outcome: Awaitable[Any]
    ) -> None:
        try:
            await outcome
        except _HANDLER_ERRORS as error:
            if _is_own_cancellation(error):
                raise
            report_incident(error, notification.method, self._report)

    def violated(self, violation: RemoteProtocolError) -> None:
        """Do nothing: the peer has told the other side, where that is allowed."""

    def _encode_failure(self, request: Request, error: BaseException) -> bytes:
        rpc_error = to_rpc_error(error, request.method, self._report)
        try:
            return ErrorResponse(request.id, rpc_error).encode()
        except LocalProtocolError as bug:  # an RpcError whose data cannot be written as JSON
            rpc_error = to_rpc_error(bug, request.method, self._report)
            return ErrorResponse(request.id, rpc_error).encode()


class _FunctionTable:
    """Functions by name, of one kind of message."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.without_context: dict[str, ParamsInvoker] = {}
        self.with_context: dict[str, ContextInvoker] = {}

    def register(self, name: str) -> Callable[[HandlerFunction], HandlerFunction]:
        if name in self.names:
            raise LocalProtocolError(f"expected a new name, got {name!r} again")
        if name.startswith("rpc."):
            raise LocalProtocolError(f"names that begin with 'rpc.' are reserved, got {name!r}")

        def register(function: HandlerFunction) -> HandlerFunction:
            parameter = _find_context_parameter(function)
            if parameter is None:
                self.without_context[name] = bind_params(function)
            else:
                self.with_context[name] = _bind_with_context(function, parameter)
            self.names.append(name)
            return function

        return register


def bind_params(function: Callable[..., Any]) -> ParamsInvoker:
    """Return a function that calls `function` with raw params.

    It raises RpcError (Invalid params), and does not call, if the params do not fit.
    """
    try:
        function_signature = signature(function, eval_str=True)
        parameters = list(function_signature.parameters.values())
        if any(p.annotation is RpcContext for p in parameters):
            raise TypeError("there is no RpcContext here")
        if all(
            p.kind is _POSITIONAL_OR_KEYWORD and p.default is Parameter.empty for p in parameters
        ):
            return _bind_required(function, parameters)
        read = _arguments_reader(function_signature)
    except (TypeError, NameError) as exc:  # an annotation that msgspec or Python cannot resolve
        raise LocalProtocolError(f"cannot read params for {function!r}: {exc}") from exc

    def invoke(params: Raw | UnsetType) -> Any:
        args, kwargs = read(params)
        return function(*args, **kwargs)

    return invoke


def _find_context_parameter(function: Callable[..., Any]) -> str | None:
    """Return the name of the parameter that takes the RpcContext, if there is one."""
    try:
        parameters = signature(function, eval_str=True).parameters.values()
    except (TypeError, ValueError, NameError):
        return None  # bind_params reports it
    found = [p for p in parameters if p.annotation is RpcContext]
    if len(found) > 1 or any(p.kind in (*_VARIADIC, Parameter.POSITIONAL_ONLY) for p in found):
        raise LocalProtocolError(
            f"expected at most one RpcContext parameter with a name in {function!r}"
        )
    return found[0].name if found else None


def _bind_with_context(function: Callable[..., Any], name: str) -> ContextInvoker:
    """Bind params to all parameters but `name`, which gets the context."""
    try:
        function_signature = signature(function, eval_str=True)
        parameters = list(function_signature.parameters.values())
        others = [p for p in parameters if p.name != name]
        read = _arguments_reader(function_signature.replace(parameters=others))
    except (TypeError, NameError) as exc:
        raise LocalProtocolError(f"cannot read params for {function!r}: {exc}") from exc
    place = [p.name for p in parameters].index(name)
    is_keyword_only = parameters[place].kind is Parameter.KEYWORD_ONLY

    def invoke(params: Raw | UnsetType, context: RpcContext) -> Any:
        args, kwargs = read(params)
        if is_keyword_only or len(args) < place:
            return function(*args, **kwargs, **{name: context})
        return function(*args[:place], context, *args[place:], **kwargs)

    return invoke


def params_type(function: Callable[..., Any]) -> type[Struct]:
    """Return the type of an object that holds the params of `function` by name."""
    parameters = signature(function, eval_str=True).parameters.values()
    usable = [p for p in parameters if p.kind not in (*_VARIADIC, Parameter.POSITIONAL_ONLY)]
    return defstruct("Params", _param_fields(usable), forbid_unknown_fields=True, kw_only=True)


# Each way to bind params is one closure, so that a call takes no more steps than it needs. The call
# of the function is outside of `try`: a TypeError that it raises is not the fault of the caller.


def _bind_required(function: Callable[..., Any], parameters: list[Parameter]) -> ParamsInvoker:
    """Decode all params, by position or by name, in one pass; fits most functions."""
    fields = _param_fields(parameters)
    by_name = defstruct("Params", fields, forbid_unknown_fields=True)
    # Any: the type checker cannot express a union of types that are computed.
    by_position: Any = tuple[tuple(kind for _, kind, *_ in fields)] if fields else tuple[()]
    read: Callable[[Raw], Any] = msgspec.json.Decoder(Union[by_name, by_position]).decode

    def invoke(params: Raw | UnsetType) -> Any:
        try:
            found = read(_NO_PARAMS if params is UNSET else params)
        except (msgspec.ValidationError, RecursionError) as exc:
            raise _invalid_params(exc) from None
        return function(*(astuple(found) if type(found) is by_name else found))

    return invoke


def _arguments_reader(function_signature: Signature) -> _ArgumentsReader:
    parameters = list(function_signature.parameters.values())
    if any(p.kind in _VARIADIC for p in parameters):
        return _variadic_reader(function_signature)
    return _reader_with_defaults(parameters)


def _reader_with_defaults(parameters: list[Parameter]) -> _ArgumentsReader:
    """Decode the params that are present; Python fills in the defaults."""
    positional = _param_fields([p for p in parameters if p.kind is not Parameter.KEYWORD_ONLY])
    named = _param_fields([p for p in parameters if p.kind is not Parameter.POSITIONAL_ONLY])
    array = defstruct("Params", positional, array_like=True, forbid_unknown_fields=True)
    table = defstruct("Params", named, forbid_unknown_fields=True, kw_only=True)
    read_array = msgspec.json.Decoder(array).decode
    read_table = msgspec.json.Decoder(table).decode
    only_by_name = _required_names(parameters, Parameter.KEYWORD_ONLY)
    only_by_position = _required_names(parameters, Parameter.POSITIONAL_ONLY)

    def read_some(params: Raw) -> tuple[Sequence[Any], dict[str, Any]]:
        if first_byte(params) == _ARRAY_BYTE:
            if only_by_name:
                raise TypeError(f"missing {only_by_name[0]!r}, which can only be given by name")
            return [value for value in astuple(read_array(params)) if value is not UNSET], {}
        if only_by_position:
            name = only_by_position[0]
            raise TypeError(f"missing {name!r}, which can only be given by position")
        given = asdict(read_table(params))
        return (), {name: value for name, value in given.items() if value is not UNSET}

    def read(params: Raw | UnsetType) -> tuple[Sequence[Any], dict[str, Any]]:
        try:
            return read_some(_NO_PARAMS if params is UNSET else params)
        except (msgspec.ValidationError, TypeError, RecursionError) as exc:
            raise _invalid_params(exc) from None

    return read


def _variadic_reader(function_signature: Signature) -> _ArgumentsReader:
    """Let Python decide what fits a function with `*args` or `**kwargs`."""

    def read(params: Raw | UnsetType) -> tuple[Sequence[Any], dict[str, Any]]:
        try:
            given: Any = {} if params is UNSET else msgspec.json.decode(params)
            if isinstance(given, dict):
                bound = function_signature.bind(**given)
            else:
                bound = function_signature.bind(*given)
        except (TypeError, RecursionError) as exc:
            raise _invalid_params(exc) from None
        return bound.args, bound.kwargs

    return read


def _param_fields(parameters: list[Parameter]) -> list[Any]:
    """Describe parameters to msgspec; those with a default may be absent."""
    fields: list[Any] = []
    for parameter in parameters:
        kind = Any if parameter.annotation is Parameter.empty else parameter.annotation
        if parameter.default is Parameter.empty:
            fields.append((parameter.name, kind))
        else:
            fields.append((parameter.name, Union[kind, UnsetType], UNSET))
    return fields


def _required_names(parameters: list[Parameter], kind: object) -> list[str]:
    return [p.name for p in parameters if p.kind is kind and p.default is Parameter.empty]


def _invalid_params(exc: Exception) -> RpcError:
    # Build the error response, without the one kind of value that msgspec quotes.
    if isinstance(exc, RecursionError):
        return RpcError.invalid_params("nested too deeply")
    text = str(exc)
    if text.startswith("Invalid enum value"):
        text = "invalid enum value" + text[text.rfind(" - at ") :]
    return RpcError.invalid_params(text[:1].lower() + text[1:])


def _is_own_cancellation(error: BaseException) -> bool:
    """Return whether the current task is being cancelled, rather than something it awaits."""
    if not isinstance(error, asyncio.CancelledError):
        return False
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
