"""Connecting to servers, and detecting which protocol they speak.

    url ──> server/discover ──> StatelessServer
                            ──> initialize ──> SessionServer, over Streamable HTTP or HTTP+SSE

    command ──> Transport ──> server/discover, initialize ──> the deciding answer
                  └──────────────> TransportServerConnection ──> StatelessServer or SessionServer

`mcp.era_detection` decides what to send next and what an answer means; this module sends it. A
server that is down, or refuses access, has not shown which protocol it uses.

Invariants:
1. No request of the detection is cancelled: neither the probe nor `initialize`.
2. The deciding answer is the last message read here: all later ones belong to the backend.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from trunkline.backends.era_cache import EraCache
from trunkline.backends.http_responses import UpstreamStatusError
from trunkline.backends.kind import ProtocolSetting
from trunkline.backends.legacy_sse import CrossOriginEndpoint, LegacySseTransport
from trunkline.backends.limits import DEFAULT_LIMITS, BackendLimits
from trunkline.backends.server_connection import ServerConnection, TransportServerConnection
from trunkline.backends.session_server import SessionServer
from trunkline.backends.stateless_server import StatelessServer, gateway_caller
from trunkline.backends.streamable_http import StreamableHttpClient
from trunkline.documents.parser import as_table
from trunkline.gateway.backend import (
    NESTED_GATEWAY_ERROR,
    Backend,
    BackendListener,
    UnusableBackend,
)
from trunkline.http.client import ClientLimits, HttpClient, HttpCredentials
from trunkline.http.exchange import Headers
from trunkline.jsonrpc import (
    MAX_PAYLOAD_BYTES,
    Called,
    ConnectionLost,
    Event,
    Failed,
    IdRemapper,
    Notification,
    Notified,
    Peer,
    PendingResult,
    Raw,
    RemoteProtocolError,
    Returned,
    RpcError,
    Transport,
    Violated,
    from_raw,
    to_raw,
)
from trunkline.jsonrpc.errors import IncidentReporter, print_incident
from trunkline.jsonrpc.transport import read_end_reason
from trunkline.mcp.era_detection import (
    DetectionStep,
    EraDetection,
    ProbeResult,
    classify_discovery,
    classify_error,
    classify_http_status,
    classify_initialize_error,
)
from trunkline.mcp.identity import cancelled_notification
from trunkline.mcp.methods import SERVER_REQUESTS
from trunkline.mcp.negotiation import (
    add_envelope,
    initialize_params,
    read_discovery,
    read_initialize_result,
)
from trunkline.mcp.params import Params
from trunkline.mcp.versions import (
    LATEST_SESSION_REVISION,
    STATELESS_REVISIONS,
    Era,
    list_dates,
)

# Calls are limited elsewhere. Here an answer to a server's request must get past all suspended
# calls.
_CLIENT_LIMITS = ClientLimits(max_body=MAX_PAYLOAD_BYTES, max_connections=16_384)
# The statuses with which servers that know only HTTP+SSE answer a POST
_LEGACY_STATUSES = frozenset((400, 404, 405))


class ClientIdentity(NamedTuple):
    """How the gateway presents itself to a server, and who handles the server's messages."""

    name: str  # the server's name in the id map
    remapper: IdRemapper
    listener: BackendListener
    capabilities: dict[str, Any]
    client_info: object
    report: IncidentReporter = print_incident  # receives unexpected exceptions

    def connection(
        self, transport: Transport, server: SessionServer | StatelessServer, limits: BackendLimits
    ) -> TransportServerConnection:
        """Return a connection over a transport, whose messages `server` handles."""
        timeout = limits.answer_drain_timeout
        return TransportServerConnection(
            transport, self.name, self.remapper, server, self.report, close_timeout=timeout
        )

    def stateless_server(self, *, over_http: bool, limits: BackendLimits) -> StatelessServer:
        """Return a server of the stateless protocol, not connected yet."""
        return StatelessServer(
            self.listener, self.client_info, over_http, limits, capabilities=self.capabilities
        )

    def http_connection(
        self,
        client: HttpClient,
        cancel: Callable[[int], Notification] | None,
        limits: BackendLimits,
    ) -> StreamableHttpClient:
        """Return a connection over HTTP; `cancel` makes the notification that cancels a call."""
        return StreamableHttpClient(
            client, self.name, self.remapper, cancel, self.report, limits=limits.streams
        )


async def connect_transport(
    transport: Transport,
    era: Era,
    identity: ClientIdentity,
    limits: BackendLimits = DEFAULT_LIMITS,
) -> Backend:
    """Initialize the server behind a transport whose protocol is known."""
    if era is Era.STATELESS:
        server = identity.stateless_server(over_http=False, limits=limits)
        await server.open(identity.connection(transport, server, limits))
        return server
    return await _open_session(identity, transport, limits)


async def _open_session(
    identity: ClientIdentity, transport: Transport, limits: BackendLimits
) -> SessionServer:
    server = SessionServer(identity.listener, limits)
    connection = identity.connection(transport, server, limits)
    await server.open(connection, identity.capabilities, identity.client_info)
    return server


class HttpConnector:
    """Connects to the server behind a URL, as often as needed."""

    def __init__(
        self,
        url: str,
        headers: Headers,
        protocol: ProtocolSetting,
        era_cache: EraCache | None = None,
        credentials: HttpCredentials | None = None,
        *,
        limits: BackendLimits = DEFAULT_LIMITS,
    ) -> None:
        self._url = url
        self._credentials = credentials
        self._headers = headers
        self._protocol: ProtocolSetting = protocol
        self._era_cache = era_cache or EraCache()
        self._limits = limits

    async def connect(self, identity: ClientIdentity) -> Backend:
        """Connect; raises RpcError, ValueError or ConnectionLost."""
        if self._protocol == Era.SESSION:
            return await self._connect_session(identity)
        if self._protocol == Era.STATELESS:
            return await self._connect_stateless(identity)
        try:
            return await self._detect(identity)
        except BaseException:  # also a cancellation: a server that hangs may have changed
            self._era_cache.invalidate()
            raise

    async def _detect(self, identity: ClientIdentity) -> Backend:
        detection = EraDetection(await self._era_cache.get())
        failures: dict[DetectionStep, Exception] = {}
        while (step := detection.next_step()) is not DetectionStep.FAIL:
            try:
                if step is DetectionStep.DISCOVER:
                    stateless = await self._connect_stateless(identity, is_probe=True)
                    self._era_cache.record(Era.STATELESS, stateless.server_info, conclusive=True)
                    return stateless
                server = await self._connect_session(identity)
                self._era_cache.record(Era.SESSION, server.server_info, detection.is_conclusive)
                return server
            except (RpcError, UpstreamStatusError, ValueError, TimeoutError) as error:
                failures[step] = error
                if step is DetectionStep.DISCOVER:
                    answered = not isinstance(error, TimeoutError)
                    detection.record_discover_result(_classify(error, classify_error), answered)
                else:
                    result = _classify(error, classify_initialize_error)
                    detection.record_initialize_error(result)
        raise failures[detection.failed_step]

    async def _connect_stateless(
        self, identity: ClientIdentity, *, is_probe: bool = False
    ) -> StatelessServer:
        limits = self._limits
        server = identity.stateless_server(over_http=True, limits=limits)
        connection = identity.http_connection(self._new_client(), None, limits)
        timeout = limits.http_probe_timeout if is_probe else None
        await server.open(connection, timeout, is_probe=is_probe)
        return server

    async def _connect_session(self, identity: ClientIdentity) -> SessionServer:
        client, limits = self._new_client(), self._limits
        server = SessionServer(identity.listener, limits)
        connection = identity.http_connection(client, cancelled_notification, limits)
        try:
            await server.open(connection, identity.capabilities, identity.client_info)
        except UpstreamStatusError as error:
            if error.status not in _LEGACY_STATUSES:
                raise
            return await self._connect_legacy(identity, error)
        return server

    async def _connect_legacy(
        self, identity: ClientIdentity, refused: UpstreamStatusError
    ) -> SessionServer:
        """Try the transport of 2024-11-05; if that fails, raise the first answer.

        A server with an endpoint at another origin gets its own error: its operator can fix that.
        """
        transport = LegacySseTransport(self._new_client(), self._url, self._limits.streams)
        try:
            await transport.open()
        except BaseException as error:
            await transport.aclose()
            if isinstance(error, ConnectionLost) and not isinstance(error, CrossOriginEndpoint):
                raise refused from error
            raise
        return await _open_session(identity, transport, self._limits)

    def _new_client(self) -> HttpClient:
        return HttpClient(self._url, self._headers, _CLIENT_LIMITS, credentials=self._credentials)


def _classify(failure: Exception, classify: Callable[[RpcError], ProbeResult]) -> ProbeResult:
    error = failure.error if isinstance(failure, UpstreamStatusError) else failure
    # Anything but an RpcError is an invalid answer, or one with an unknown revision.
    result = classify(error) if isinstance(error, RpcError) else ProbeResult.SESSION
    if isinstance(failure, UpstreamStatusError):
        return classify_http_status(failure.status, result)
    return result


class StdioConnector:
    """Connects to a server that a command starts, as often as needed."""

    def __init__(
        self,
        start: Callable[[], Awaitable[Transport]],
        protocol: ProtocolSetting,
        era_cache: EraCache | None = None,
        limits: BackendLimits = DEFAULT_LIMITS,
    ) -> None:
        self._start = start
        self._protocol: ProtocolSetting = protocol
        self._era_cache = era_cache or EraCache()
        self._limits = limits

    async def connect(self, identity: ClientIdentity) -> Backend:
        """Start and connect it; raises RpcError, ValueError or ConnectionLost.

        Raises UnusableBackend if it is a gateway that refuses to run below this one.
        """
        try:
            return await self._connect(identity)
        except RpcError as error:
            if _is_nested_gateway(error):
                raise UnusableBackend(error.message) from error
            raise

    async def _connect(self, identity: ClientIdentity) -> Backend:
        if self._protocol != "auto":
            transport, era = await self._start(), Era(self._protocol)
            return await connect_transport(transport, era, identity, self._limits)
        try:
            timeouts = self._limits.probe_timeouts
            detection = EraDetection(await self._era_cache.get(), timeouts)
            backend = await self._detect(detection, identity)
        except BaseException:  # also a cancellation: a server that hangs may have changed
            self._era_cache.invalidate()
            raise
        if isinstance(backend, StatelessServer):
            self._era_cache.record(Era.STATELESS, backend.server_info, conclusive=True)
        else:
            self._era_cache.record(Era.SESSION, backend.server_info, detection.is_conclusive)
        return backend

    async def _detect(
        self, detection: EraDetection, identity: ClientIdentity
    ) -> StatelessServer | SessionServer:
        probe = _EraProbe(await self._start(), identity, self._limits)
        try:
            while (step := detection.next_step()) is not DetectionStep.FAIL:
                if step is DetectionStep.RESTART:
                    await probe.aclose()
                    probe = _EraProbe(await self._start(), identity, self._limits)
                    continue
                decided = None
                try:
                    if step is DetectionStep.WAIT:
                        decided = await probe.receive(detection)
                    else:
                        await probe.send(step)
                except ConnectionLost as error:
                    probe.failures.setdefault(DetectionStep.INITIALIZE, error)
                    detection.record_exit()
                if decided is not None:
                    return await probe.open_server(decided)
            raise probe.failures[detection.failed_step]
        except BaseException:
            await probe.aclose()
            raise


def _is_nested_gateway(error: RpcError) -> bool:
    data = from_raw(error.data) if isinstance(error.data, Raw) else error.data
    return (as_table(data) or {}).get("type") == NESTED_GATEWAY_ERROR


class _DecidingAnswer(NamedTuple):
    step: DetectionStep
    result: Raw


class _EraProbe:
    """The messages to and from a child process until an answer decides."""

    def __init__(
        self, transport: Transport, identity: ClientIdentity, limits: BackendLimits
    ) -> None:
        self.failures: dict[DetectionStep, Exception] = {}
        self._transport = transport
        self._identity = identity
        self._limits = limits
        self._peer = Peer(identity.name, identity.remapper, reply_to_violations=False)
        # Handles what the server sends before its answer, in either protocol.
        self._session_server = SessionServer(identity.listener, limits)
        self._sent_steps: dict[int, DetectionStep] = {}
        self._receiving: asyncio.Task[list[Event]] | None = None

    async def send(self, step: DetectionStep) -> None:
        """Send one of the two requests; raises ConnectionLost."""
        identity = self._identity
        if step is DetectionStep.DISCOVER:
            params = Params(to_raw({}))
            # The server may be a gateway, which tells its own servers what the first request says.
            add_envelope(params, gateway_caller(identity.client_info, identity.capabilities))
            payload = params.encode()
        else:
            capabilities, client_info = identity.capabilities, identity.client_info
            payload = to_raw(initialize_params(LATEST_SESSION_REVISION, capabilities, client_info))
        self._sent_steps[self._peer.call(step, payload)] = step
        await self._flush()

    async def receive(self, detection: EraDetection) -> _DecidingAnswer | None:
        """Wait for an answer, and return it if it decides; raises ConnectionLost."""
        loop = asyncio.get_running_loop()
        timeout = detection.timeout
        deadline = None if timeout is None else loop.time() + timeout
        answer: Returned | Failed | None = None
        while answer is None:
            # Kept over a timeout: a cancelled receive could lose a message.
            if self._receiving is None:
                self._receiving = loop.create_task(self._receive_events())
            receiving = self._receiving
            left = None if deadline is None else deadline - loop.time()
            if left is not None and left <= 0:
                # Keep listening: the server may be slow, or print text before it answers.
                detection.record_timeout()
                return None
            await asyncio.wait({receiving}, timeout=left)
            if not receiving.done():
                continue
            self._receiving = None
            for event in receiving.result():
                if isinstance(event, Returned | Failed):
                    answer = event  # the only one, since batches are refused here
                else:
                    await self._handle_event(event)
            await self._flush()
        return self._decide(answer, detection)

    async def _receive_events(self) -> list[Event]:
        try:
            payload = await self._transport.receive()
        except RemoteProtocolError as violation:
            return self._peer.report_violation(violation)
        except OSError as error:
            raise ConnectionLost(str(error)) from error
        if payload is None:
            reason = read_end_reason(self._transport)
            ended = "the server ended" if reason is None else f"the server ended ({reason})"
            raise ConnectionLost(f"{ended} before it answered with its protocol revision")
        return self._peer.receive(payload)

    async def _handle_event(self, event: Event) -> None:
        if isinstance(event, Notified):
            notified = self._session_server.notified(event.notification)
            if notified is not None:
                await notified
        elif isinstance(event, Violated):
            self._session_server.violated(event.violation)
        elif isinstance(event, Called):
            row = SERVER_REQUESTS.get(event.request.method)
            if row is not None and row.precedes_session:
                self._peer.respond(event, self._session_server.called(event.request))
            else:
                self._peer.respond_error(event, RpcError.method_not_found(event.request.method))

    def _decide(self, answer: Returned | Failed, detection: EraDetection) -> _DecidingAnswer | None:
        """Return an answer if it decides; otherwise report it to the detection."""
        step = self._sent_steps[answer.id]
        try:
            return _DecidingAnswer(step, _require_decision(step, answer))
        except (RpcError, ValueError) as failure:
            self.failures[step] = failure
            error = failure if isinstance(failure, RpcError) else None
            if step is DetectionStep.INITIALIZE:
                result = classify_initialize_error(error) if error else ProbeResult.SESSION
                detection.record_initialize_error(result)
            else:
                result = classify_error(error) if error else ProbeResult.SESSION
                detection.record_discover_result(result)
        return None

    async def _flush(self) -> None:
        while (payload := self._peer.next_payload()) is not None:
            await self._transport.send(payload)

    async def open_server(self, decided: _DecidingAnswer) -> StatelessServer | SessionServer:
        """Continue with the protocol that was detected."""
        step, answer = decided
        identity, limits = self._identity, self._limits
        self._peer.close()
        if step is DetectionStep.INITIALIZE:
            server = self._session_server
            connection = identity.connection(self._transport, server, limits)
            primed = _PrimedConnection(connection, answer)
            await server.open(primed, identity.capabilities, identity.client_info)
            return server
        stateless = identity.stateless_server(over_http=False, limits=limits)
        connection = identity.connection(self._transport, stateless, limits)
        await stateless.open(_PrimedConnection(connection, answer))
        return stateless

    async def aclose(self) -> None:
        """Close the transport, and end the child process with it."""
        self._peer.close()
        if self._receiving is not None:
            self._receiving.cancel()
        await self._transport.aclose()
        if self._receiving is not None:
            await asyncio.gather(self._receiving, return_exceptions=True)


class _PrimedConnection:
    has_streams = False

    def __init__(self, connection: ServerConnection, answer: Raw) -> None:
        self._connection = connection
        self._answer = answer
        self.call: Callable[..., PendingResult] = self._call_first
        self.notify, self.cancel = connection.notify, connection.cancel
        self.on_session_opened = connection.on_session_opened
        self.wait_ended, self.aclose = connection.wait_ended, connection.aclose

    def _call_first(self, *_: object, **__: object) -> PendingResult:
        self.call = self._connection.call  # later calls go there directly
        return PendingResult.from_result(self._answer)


def _require_decision(step: DetectionStep, answer: Returned | Failed) -> Raw:
    """Return a result that decides; raises RpcError or ValueError for any other answer."""
    if isinstance(answer, Failed):
        raise answer.error
    if step is DetectionStep.INITIALIZE:
        read_initialize_result(answer.result)
    elif classify_discovery(read_discovery(answer.result)) is not ProbeResult.STATELESS:
        expected = " or ".join(list_dates(STATELESS_REVISIONS))
        raise ValueError(f"expected {expected!r} among its versions")
    return answer.result
