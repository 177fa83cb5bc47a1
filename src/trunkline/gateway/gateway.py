"""Gateway: the registry of backends on one side, sessions with clients on the other.

    Channel ──> Session ──> Registry ──> Upstream ──> Backend
                   <── what backends tell and ask, to the sessions that it concerns ──┘

Refuses to open anything: it is given Channels, and ways to connect to backends.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from trunkline.gateway.registry import Registry
from trunkline.gateway.session import Identity, Session
from trunkline.gateway.upstream import Backend, Connect, Settings, Upstream
from trunkline.jsonrpc import (
    Called,
    Channel,
    Connection,
    IdRemapper,
    Incident,
    Notification,
    Notified,
    Peer,
    Raw,
    RpcError,
    print_incident,
)
from trunkline.jsonrpc.incident import answer_for
from trunkline.mcp.capabilities import questions
from trunkline.mcp.meta import Params
from trunkline.mcp.methods import SERVER_NOTIFICATIONS
from trunkline.mcp.offer import Kind
from trunkline.mcp.versions import allows_batches
from trunkline.routing.call import withdrawal

LOCAL = "local"
"""The principal of whoever started this process and speaks to it over stdio."""

GRACE = 1.0
"""How long, in seconds, a client's calls may go on after it has said its last word."""


class Gateway:
    """Many servers behind one."""

    def __init__(
        self,
        identity: Identity,
        chance: Callable[[], float],
        report: Callable[[Incident], None] = print_incident,
    ) -> None:
        """Begin with no backends; `chance` spreads their restarts."""
        self.identity = identity
        self.registry = Registry()
        self.remapper = IdRemapper()
        self.client_capabilities: dict[str, Any] = {}
        self._chance = chance
        self._report = report
        self._sessions: set[Session] = set()
        self.registry.listen(self._catalogue_changed)

    def add(self, settings: Settings, connect: Connect) -> None:
        """Take in a backend; it is started with the others."""
        ear = _Ear(self, settings.name)
        self.registry.add(Upstream(settings, connect, self.registry.publish, ear, self._chance))

    @property
    def sessions(self) -> frozenset[Session]:
        """The conversations that are going on."""
        return frozenset(self._sessions)

    async def serve(self, channel: Channel, principal: str = LOCAL) -> None:
        """Serve one client over `channel`, to its end."""
        session = Session(self.registry, self.identity, principal, self._opened)
        connection = Connection(
            channel,
            session,
            Peer("client"),
            grace=GRACE,
            withdrawal=withdrawal,
            report=self._report,
        )
        session.connection = connection
        self._sessions.add(session)
        try:
            await connection.run()
        finally:
            self._sessions.discard(session)
            await session.aclose()

    def open_engine(self, principal: str = LOCAL) -> "Engine":
        """Return a session without a channel: text in, text out."""
        return Engine(Session(self.registry, self.identity, principal, self._opened), self._report)

    async def aclose(self) -> None:
        """End all sessions and all backends."""
        connections = [s.connection for s in self._sessions if s.connection is not None]
        await asyncio.gather(*(connection.aclose() for connection in connections))
        await self.registry.aclose()

    def _opened(self, session: Session) -> None:
        """Start the backends for the first client that comes, and tell them what it can."""
        if not self.client_capabilities:
            self.client_capabilities = questions(session.caller.capabilities)
        self.registry.start()

    # What backends say

    def _catalogue_changed(self, kinds: tuple[Kind, ...]) -> None:
        changed = {kind.capability for kind in kinds}
        for capability in sorted(changed):
            method = f"notifications/{capability}/list_changed"
            for session in self._sessions:
                if session.operational:
                    session.post(method, None)

    async def told(self, backend: str, method: str, params: Any) -> None:
        """Pass on what a backend tells everybody, to those whom it concerns."""
        if method == "notifications/resources/updated":
            self._updated(backend, Params(params))
            return
        known = SERVER_NOTIFICATIONS.get(method)
        for session in self._sessions:
            if session.operational and (known is None or session.caller.version in known.versions):
                session.post(method, params)

    def _updated(self, backend: str, params: Params) -> None:
        """Tell those who follow a resource, under the URI by which they know it."""
        native = params.text("uri")
        listed = self._public_uri(backend, native)
        for session in self._sessions:
            followed = session.follows(backend, native)
            if followed is not None:
                params.put("uri", listed or followed)
                session.post("notifications/resources/updated", params.encode())

    def _public_uri(self, backend: str, native: str) -> str | None:
        for entry in self.registry.catalog.entries(Kind.RESOURCE):
            if (entry.backend, entry.native) == (backend, native):
                return entry.public
        return None

    async def asked(self, method: str, params: Any, backend: Backend | None) -> Raw:
        """Ask the one client there is; with several, nobody can know whom a backend means."""
        sessions = [session for session in self._sessions if session.initialized]
        if len(sessions) != 1:
            raise RpcError.method_not_found(method)
        return await sessions[0].ask(method, params, backend)


class _Ear:
    """Hears one backend, and tells the gateway which one it was."""

    def __init__(self, gateway: Gateway, backend: str) -> None:
        self._gateway = gateway
        self._backend = backend

    def offers_changed(self) -> None:
        """Leave it to the Upstream, which has seen to it."""

    def became_ready(self) -> None:
        upstream = self._gateway.registry.upstream(self._backend)
        for session in self._gateway.sessions:
            session.catch_up(upstream)

    async def told(self, method: str, params: Any) -> None:
        await self._gateway.told(self._backend, method, params)

    async def asked(self, method: str, params: Any, backend: Backend | None = None) -> Raw:
        return await self._gateway.asked(method, params, backend)


class Engine:
    """A session without a channel: one text in, the answer's text out, or None."""

    def __init__(self, session: Session, report: Callable[[Incident], None]) -> None:
        self.session = session
        self._report = report
        self._peer = Peer("client")

    async def handle_json(self, text: str) -> str | None:
        """Return the answer to one payload, None where none is due."""
        events = self._peer.receive(text)
        answer = self._peer.outgoing()
        for event in events:
            if isinstance(event, Called):
                await self._answer(event)
            elif isinstance(event, Notified):
                self._take_note(event.notification)
            # At once: while the rest is awaited, other payloads may come and be answered.
            answer = answer or self._peer.outgoing()
        return None if answer is None else answer.decode()

    async def _answer(self, called: Called) -> None:
        try:
            outcome = self.session.called(called.request)
            self._peer.answer(called, await outcome if hasattr(outcome, "__await__") else outcome)
        except Exception as error:
            self._peer.fail(called, answer_for(error, called.request.method, self._report))
        except asyncio.CancelledError:
            self._peer.abandon(called)  # or its id would be in use for ever
            raise
        if self.session.initialized:
            self._peer.batch = "allow" if allows_batches(self.session.caller.version) else "reject"

    def _take_note(self, notification: Notification) -> None:
        try:
            self.session.notified(notification)
        except Exception as error:  # a notification is never answered, not even with an error
            answer_for(error, notification.method, self._report)
