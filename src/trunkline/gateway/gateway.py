"""The gateway: upstreams on one side, sessions and stateless requests of clients on the other.

    Transport ─────────> Session ───────────┐
    stateless requests ──> StatelessHandler ─┴─> Router ──> Upstream, of the Registry ──> Backend
               <── notifications and requests of backends, to the clients they concern ──┘

It opens nothing itself: transports, and functions that connect to backends, are passed in.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from typing import Any

from trunkline.gateway.backend import ConnectBackend
from trunkline.gateway.client import PrincipalWatcher, Requester, RequestStream, SessionStream
from trunkline.gateway.events import (
    BackendStateChanged,
    CatalogChanged,
    EventBus,
    LimitReached,
    SkippedFeatures,
    StrayOutput,
)
from trunkline.gateway.list_changes import ListChanges
from trunkline.gateway.pipeline import Pipeline
from trunkline.gateway.registry import Registry, readiness
from trunkline.gateway.request_state import KeyRing, StateCipher
from trunkline.gateway.router import Router
from trunkline.gateway.secondary_sessions import MAX_LISTING_SESSIONS
from trunkline.gateway.session import GatewayIdentity, Session
from trunkline.gateway.settings import GatewayLimits, UpstreamSettings, UpstreamSnapshot
from trunkline.gateway.stateless import StatelessHandler
from trunkline.gateway.stores import ListingStore
from trunkline.gateway.suspended_calls import SuspendedCalls
from trunkline.gateway.upstream import Upstream, UpstreamState
from trunkline.jsonrpc import (
    Called,
    Connection,
    IdRemapper,
    Incident,
    Notification,
    Notified,
    Peer,
    Raw,
    Request,
    RpcError,
    Transport,
    print_incident,
)
from trunkline.jsonrpc.errors import to_rpc_error
from trunkline.mcp.capabilities import input_capabilities, read_client_features
from trunkline.mcp.features import FeatureKind
from trunkline.mcp.http_headers import HeaderCheck
from trunkline.mcp.identity import LOCAL_PRINCIPAL, Caller, Principal, cancelled_notification
from trunkline.mcp.methods import SERVER_NOTIFICATIONS, SUBSCRIPTION, TO_CALLER
from trunkline.mcp.negotiation import SUBSCRIPTION_ID_KEY
from trunkline.mcp.params import Params
from trunkline.routing.visibility import Visibility

MAX_CALLS_PER_CONNECTION = 8192
"""How many calls of one client may be in flight on one stdio or WebSocket connection."""

STRAY_OUTPUT_INTERVAL = 60.0
"""How many seconds pass between two events about text on stdout of one server."""

MAX_STRAY_SAMPLE_LENGTH = 200
"""How many characters of such a line the event shows."""


class Gateway:
    """Many MCP servers behind one."""

    def __init__(
        self,
        identity: GatewayIdentity,
        jitter: Callable[[], float],
        report: Callable[[Incident], None] = print_incident,
        suspended_calls: SuspendedCalls | None = None,
        visibility: Visibility | None = None,
        *,
        limits: GatewayLimits | None = None,
        listings: ListingStore | None = None,
    ) -> None:
        """Begin without upstreams; `jitter` returns 0 to 1 and spreads their restarts."""
        self.identity = identity
        self._limits = limits = limits or GatewayLimits()
        self.registry = Registry(visibility, limits, listings)
        self.pipeline = Pipeline(EventBus(report), self.registry.decisions)
        self.router = Router(self.registry, self.pipeline)
        self.remapper = IdRemapper()
        self.client_capabilities: dict[str, Any] = {}
        self.mask_secrets: Callable[[str], str] = str
        """Removes configured secrets from what upstreams report; set it before adding them."""
        self.read_stderr: Callable[[str], tuple[str, ...]] = lambda _: ()
        """Returns the last lines that an upstream wrote to stderr, without secrets."""
        self._jitter = jitter
        self.report = report
        """Receives incidents: unexpected exceptions."""
        self._sessions: set[Session] = set()
        self._connections: set[Connection] = set()
        if suspended_calls is None:  # not `or`: an empty SuspendedCalls is falsy
            suspended_calls = SuspendedCalls(StateCipher(KeyRing.generate()))
        instructions = identity.instructions
        self.stateless = StatelessHandler(
            self.router,
            identity.server_info,
            instructions,
            suspended_calls,
            self._on_client,
            acknowledge_timeout=limits.acknowledge_timeout,
        )
        self.subscription_counts = self.registry.subscription_counts
        self.subscription_counts.on_limit = self.record_limit
        self._listing_slots = asyncio.Semaphore(MAX_LISTING_SESSIONS)
        self._skipped: dict[str, tuple[str, ...]] = {}
        # For each upstream: its stray lines since the last event, and when the next event may come
        self._stray_lines: dict[str, tuple[int, float]] = {}
        self.registry.add_listener(self._on_catalog_changed)
        self.reports_list_changes = False
        """Whether changes of the lists are events, as webhooks need them."""
        self._list_changes = ListChanges(
            self.registry.wait_first_start, self._list_watchers, limits, self._emit_catalog_changed
        )
        self.registry.add_listener(self._list_changes.note)

    def add_upstream(self, settings: UpstreamSettings, connect: ConnectBackend) -> None:
        """Add an upstream; it is started with the others."""
        self.registry.add(self._create_upstream(settings, connect))

    def _create_upstream(self, settings: UpstreamSettings, connect: ConnectBackend) -> Upstream:
        listener, changed = _UpstreamListener(self, settings.name), self.registry.publish
        upstream = Upstream(
            settings,
            connect,
            changed,
            listener,
            self._jitter,
            on_state_changed=self._on_state_changed,
            mask=self.mask_secrets,
        )
        upstream.emit = self.pipeline.events.emit
        upstream.set_listing_slots(self._listing_slots)
        return upstream

    def set_identity(self, identity: GatewayIdentity) -> None:
        """Change what new clients are told about the gateway."""
        self.identity = identity
        self.stateless.set_identity(identity.server_info, identity.instructions)
        for session in self._sessions:
            session.identity = identity

    def apply_config(
        self,
        backends: Iterable[tuple[UpstreamSettings, ConnectBackend]],
        restarted: Collection[str] = (),
        removed: Collection[str] = (),
        announced: frozenset[str] = frozenset(),
    ) -> None:
        """Use these backends, in this order, then existing backends that are not `removed`.

        Upstreams named in `restarted` start again; the others continue with the new settings.
        Clients are told of `announced` capabilities even if the catalogue is the same.
        """
        upstreams: list[Upstream] = []
        for settings, connect in backends:
            upstream = self.registry.configured(settings.name)
            if (
                upstream is None
                or settings.name in restarted
                or _may_be_retried(upstream, settings)
            ):
                upstream = self._create_upstream(settings, connect)
            else:
                upstream.reconfigure(settings, connect)
            upstreams.append(upstream)
        named = {upstream.name for upstream in upstreams}
        rest = [upstream.name for upstream in self.registry if upstream.name not in named]
        upstreams += [
            u for name in rest if name not in removed and (u := self.registry.configured(name))
        ]
        self.registry.apply_config(upstreams, announced)
        for name in removed:
            self.stateless.drop_backend(name)
            for session in self._sessions:
                session.drop_backend(name)

    @property
    def sessions(self) -> frozenset[Session]:
        """The open sessions."""
        return frozenset(self._sessions)

    async def serve(
        self,
        transport: Transport,
        principal: Principal = LOCAL_PRINCIPAL,
        watch_principal: PrincipalWatcher | None = None,
        address: str = "",
    ) -> None:
        """Serve one client, at an IP address if it has one, over a transport until it is closed.

        Pass `watch_principal` for transports whose messages each have their own token.
        """
        session = self._create_session(principal)
        session.address = address
        if watch_principal is not None:
            watch_principal(session.update_principal)
        connection = Connection(
            transport,
            session,
            Peer("client", max_in_flight=MAX_CALLS_PER_CONNECTION),
            close_timeout=self._limits.close_timeout,
            cancellation=cancelled_notification,
            report=self.report,
        )
        session.session_stream = connection
        self._connections.add(connection)
        self._sessions.add(session)
        try:
            await connection.run()
        finally:
            self._connections.discard(connection)
            await self.close_session(session)

    def open_session(
        self, stream: SessionStream, principal: Principal = LOCAL_PRINCIPAL
    ) -> Session:
        """Open a session whose messages travel on `stream`; the caller closes it."""
        session = self._create_session(principal)
        session.session_stream = stream
        self._sessions.add(session)
        return session

    def handle_stateless(
        self,
        request: Request,
        params: Params,
        principal: Principal,
        stream: RequestStream,
        header_check: HeaderCheck,
    ) -> Any:
        """Answer a stateless-protocol request, or return an awaitable of the answer."""
        return self.stateless.answer(request, params, principal, stream, header_check)

    def refuse_unreadable(
        self, request: Request, principal: Principal, stream: RequestStream, error: RpcError
    ) -> RpcError:
        """Count and record a stateless-protocol request whose params are malformed."""
        return self.stateless.refuse_unreadable(request, principal, stream, error)

    def record_limit(
        self, principal: Principal, limit: str, *, session_ended: bool = False
    ) -> None:
        """Emit that a principal has reached a limit, by its key in the configuration."""
        self.pipeline.events.emit(LimitReached(principal.label, limit, session_ended))

    @property
    def ready(self) -> bool:
        """Whether every upstream has been ready or has failed once."""
        return self.registry.started

    def readiness(self, detailed: bool = False) -> dict[str, Any]:
        """Return whether clients can be served, as `status`; with `detailed`, who is degraded."""
        return readiness(self.registry, detailed)

    async def close_session(self, session: Session) -> None:
        """Close a session."""
        self._sessions.discard(session)
        await session.aclose()

    def _create_session(self, principal: Principal) -> Session:
        return Session(
            self.router,
            self.identity,
            principal,
            self._on_session_initialized,
            self.stateless,
            max_subscribed_uris=self._limits.max_subscribed_uris,
        )

    def open_engine(self, principal: Principal = LOCAL_PRINCIPAL) -> "Engine":
        """Return a session without a transport: text in, text out."""
        return Engine(self._create_session(principal), self.report)

    async def aclose(self) -> None:
        """Close all sessions and upstreams."""
        self.stateless.end_subscriptions()
        self.stateless.suspended_calls.close()
        await self._list_changes.aclose()
        await asyncio.gather(*(connection.aclose() for connection in set(self._connections)))
        await self.registry.aclose()
        self.pipeline.events.flush()

    def _on_session_initialized(self, session: Session) -> None:
        if isinstance(session.session_stream, Connection):
            batches = session.caller.revision.allows_batches
            session.session_stream.peer.batch_policy = "allow" if batches else "reject"
        self._on_client(session.caller)

    def _on_client(self, caller: Caller) -> None:
        """Start upstreams at the first client, and list the features that such clients get."""
        if not self.client_capabilities:
            self.client_capabilities = input_capabilities(caller.capabilities)
        # Servers learn these features when they start, and may list other tools for others.
        self.registry.start(",".join(sorted(read_client_features(self.client_capabilities))))
        self.registry.prepare_for(caller.client_features)

    # Messages of backends

    def _on_state_changed(self, backend: UpstreamSnapshot) -> None:
        events = self.pipeline.events
        if events:
            name, state = backend.name, backend.state.value
            has_failed = backend.state in {UpstreamState.WAITING, UpstreamState.FAILED}
            stderr = self.read_stderr(name) if has_failed else ()
            events.emit(BackendStateChanged(name, state, backend.error, backend.retry_in, stderr))
            self._emit_skipped(backend)

    def _emit_skipped(self, backend: UpstreamSnapshot) -> None:
        """Emit which features of a backend are skipped, unless that has not changed."""
        reasons = backend.skipped
        if reasons and self._skipped.get(backend.name) != reasons:
            self._skipped[backend.name] = reasons
            self.pipeline.events.emit(SkippedFeatures(backend.name, reasons))

    def note_stray_output(self, backend: str, line: str) -> None:
        """Emit that a server writes text to stdout, at most once per interval for each server."""
        now = asyncio.get_running_loop().time()
        count, next_at = self._stray_lines.get(backend, (0, now))
        if now < next_at:
            self._stray_lines[backend] = count + 1, next_at
            return
        self._stray_lines[backend] = 0, now + STRAY_OUTPUT_INTERVAL
        sample = self.mask_secrets(line)[:MAX_STRAY_SAMPLE_LENGTH]
        self.pipeline.events.emit(StrayOutput(backend, sample, count + 1))

    def _on_catalog_changed(self, _: tuple[FeatureKind, ...]) -> None:
        for backend in self.registry.snapshots():
            self._emit_skipped(backend)

    def _emit_catalog_changed(self, kinds: Collection[FeatureKind]) -> None:
        if self.reports_list_changes:
            self.pipeline.events.emit(CatalogChanged(tuple(sorted(kind.value for kind in kinds))))

    def _list_watchers(self) -> Iterator[Callable[[Collection[FeatureKind]], None]]:
        """Yield the functions that notify the clients of changed lists."""
        for session in tuple(self._sessions):
            if session in self._sessions:  # the caller pauses now and then
                yield session.notify_changed_lists
        for subscription in self.stateless.subscription_streams:
            yield partial(self.stateless.notify_changed_lists, subscription)

    async def on_notification(self, backend: str, method: str, params: Any) -> None:
        """Pass a notification of a backend on to the clients that it concerns."""
        if backend not in self.registry:
            return  # it was removed
        if not self.pipeline.may_receive(None, backend):
            return
        row = SERVER_NOTIFICATIONS.get(method)
        if row is not None and row.mode is SUBSCRIPTION:
            self._on_resource_updated(backend, method, Params(params))
            return
        if method == "notifications/elicitation/complete":
            elicitation_id = Params(params).require_text("elicitationId")
            self.stateless.suspended_calls.complete_url(backend, elicitation_id)
        sessions = [s for s in self._sessions if s.operational and self._may_receive(s, backend)]
        if row is not None and row.is_log_message:
            # Prefer clients that have set a log level, if any has.
            sessions = [s for s in sessions if s.caller.log_level is not None] or sessions
        if row is not None and row.mode is TO_CALLER:
            # The backend could not tell which call the message belongs to.
            busy = self.registry.upstream(backend).busy
            if busy or len(sessions) > 1:
                return  # it may belong to one client, and must not reach another
        for session in sessions:
            session.queue_notification(method, params)

    def _on_resource_updated(self, backend: str, method: str, params: Params) -> None:
        """Notify the subscribers of a resource, under the URI they subscribed to."""
        native = params.require_text("uri")
        params.drop_meta(
            frozenset((SUBSCRIPTION_ID_KEY,))
        )  # our own subscription id at the backend
        listed = self._public_uri(backend, native)
        self.stateless.resource_updated(method, backend, native, listed, params.encode())
        for session in self._sessions:
            followed = session.subscribed_uri(backend, native)
            if not self._may_receive(session, backend) or followed is None:
                continue
            if self.router.may_receive_update(session.caller, backend, native, listed):
                params.put("uri", listed or followed)
                session.queue_notification(method, params.encode())

    def _may_receive(self, session: Session, backend: str) -> bool:
        """Return whether a client sees anything of a backend, so that its notifications count."""
        if not session.initialized or not self.pipeline.may_receive(session.caller, backend):
            return False
        return self.registry.visibility.can_see_backend(
            self.registry.catalog, session.caller, backend
        )

    def _public_uri(self, backend: str, native: str) -> str | None:
        for entry in self.registry.catalog.entries(FeatureKind.RESOURCE):
            if (entry.backend, entry.native_name) == (backend, native):
                return entry.public_name
        return None

    async def on_request(
        self, backend: str, method: str, params: Any, requester: Requester | None
    ) -> Raw:
        """Pass a request of a backend on to the only client; with several it is ambiguous."""
        sessions = [session for session in self._sessions if session.initialized]
        if len(sessions) != 1 or not self._may_receive(sessions[0], backend):
            raise RpcError.method_not_found(method)
        return await sessions[0].send_request(method, params, requester)


def _may_be_retried(upstream: Upstream, settings: UpstreamSettings) -> bool:
    """Return whether new settings give an upstream another chance that has failed for good."""
    return upstream.state is UpstreamState.FAILED and upstream.settings != settings


class _UpstreamListener:
    """Passes on what one backend sends, with the name of that backend."""

    def __init__(self, gateway: Gateway, backend: str) -> None:
        self._gateway = gateway
        self._backend = backend

    def on_features_changed(self, capability: str) -> None:
        """Do nothing: the Upstream handles it."""

    def on_session_renewed(self) -> None:
        """Do nothing: the Upstream handles it."""

    async def on_notification(self, method: str, params: Any) -> None:
        await self._gateway.on_notification(self._backend, method, params)

    async def on_request(self, method: str, params: Any, requester: Requester | None = None) -> Raw:
        return await self._gateway.on_request(self._backend, method, params, requester)


class Engine:
    """A session without a transport: takes one payload as text, returns the answer's text."""

    def __init__(self, session: Session, report: Callable[[Incident], None]) -> None:
        self.session = session
        self._report = report
        self._peer = Peer("client")

    async def handle_json(self, text: str) -> str | None:
        """Return the answer to one payload, None if there is none."""
        events = self._peer.receive(text)
        answer = self._peer.next_payload()
        for event in events:
            if isinstance(event, Called):
                await self._answer(event)
            elif isinstance(event, Notified):
                self._handle_notification(event.notification)
            # Take it now: other payloads may be answered while the rest is awaited.
            answer = answer or self._peer.next_payload()
        return None if answer is None else answer.decode()

    async def _answer(self, called: Called) -> None:
        try:
            outcome = self.session.called(called.request)
            self._peer.respond(called, await outcome if hasattr(outcome, "__await__") else outcome)
        except Exception as error:
            self._peer.respond_error(
                called, to_rpc_error(error, called.request.method, self._report)
            )
        except asyncio.CancelledError:
            self._peer.drop_request(called)  # else its id would stay in use
            raise
        if self.session.initialized:
            self._peer.batch_policy = (
                "allow" if self.session.caller.revision.allows_batches else "reject"
            )

    def _handle_notification(self, notification: Notification) -> None:
        try:
            self.session.notified(notification)
        except Exception as error:  # notifications are never answered, not even with an error
            to_rpc_error(error, notification.method, self._report)
