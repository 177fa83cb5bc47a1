"""Gateway: the registry of backends on one side, sessions with clients on the other.

    Channel ───> Session ────┐
    envelope ──> Stateless ──┴─> Forwarder ──> Upstream, of the Registry ──> Backend
                   <── what backends tell and ask, to the sessions that it concerns ──┘

Refuses to open anything: it is given Channels, and ways to connect to backends.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable
from typing import Any

from trunkline.gateway.backend import Connect
from trunkline.gateway.client import Asker, Line, Trunk
from trunkline.gateway.events import BackendMoved, Events, LeftOut
from trunkline.gateway.forward import Forwarder
from trunkline.gateway.layers import Layers
from trunkline.gateway.parking import Parking
from trunkline.gateway.readiness import Conceal, as_it_is, readiness
from trunkline.gateway.registry import Registry
from trunkline.gateway.sealing import KeyRing, Seal
from trunkline.gateway.session import Identity, Session
from trunkline.gateway.settings import Settings
from trunkline.gateway.snapshot import Snapshot
from trunkline.gateway.stateless import Stateless
from trunkline.gateway.upstream import State, Upstream
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
    Request,
    RpcError,
    print_incident,
)
from trunkline.jsonrpc.incident import answer_for
from trunkline.mcp.caller import Caller
from trunkline.mcp.capabilities import questions
from trunkline.mcp.envelope import SUBSCRIPTION
from trunkline.mcp.meta import Params
from trunkline.mcp.methods import SERVER_NOTIFICATIONS
from trunkline.mcp.mirrors import Mirrors
from trunkline.mcp.offer import Kind
from trunkline.mcp.principal import LOCAL, Principal
from trunkline.mcp.versions import allows_batches
from trunkline.routing.call import withdrawal
from trunkline.routing.view import View

MAX_CALLS = 8192
"""How many calls of one client may be under way on one line; over HTTP every one has its own."""

GRACE = 1.0
"""How long, in seconds, a client's calls may go on after it has said its last word."""


class Gateway:
    """Many servers behind one."""

    def __init__(
        self,
        identity: Identity,
        chance: Callable[[], float],
        report: Callable[[Incident], None] = print_incident,
        parking: Parking | None = None,
        view: View | None = None,
    ) -> None:
        """Begin with no backends; `chance` spreads their restarts, `view` says who sees what."""
        self.identity = identity
        self.registry = Registry(view)
        self.layers = Layers(Events(report), self.registry.routes)
        self.forwarder = Forwarder(self.registry, self.layers)
        self.remapper = IdRemapper()
        self.client_capabilities: dict[str, Any] = {}
        self.conceal: Conceal = as_it_is
        """Takes what a backend was given in confidence out of what it says."""
        self._chance = chance
        self.report = report
        """Hears what nobody foresaw."""
        self._sessions: set[Session] = set()
        self._connections: set[Connection] = set()
        if parking is None:  # not `or`: one in which nothing is parked is empty
            parking = Parking(Seal(KeyRing.random()))
        instructions = identity.instructions
        self.stateless = Stateless(
            self.forwarder, identity.server, instructions, parking, self._met
        )
        self._left_out: dict[str, tuple[str, ...]] = {}
        self.registry.listen(self._catalogue_changed)

    def add(self, settings: Settings, connect: Connect) -> None:
        """Take in a backend; it is started with the others."""
        self.registry.add(self._upstream(settings, connect))

    def _upstream(self, settings: Settings, connect: Connect) -> Upstream:
        ear, changed = _Ear(self, settings.name), self.registry.publish
        return Upstream(settings, connect, changed, ear, self._chance, moved=self._moved)

    def introduce(self, identity: Identity) -> None:
        """Say something else of itself from now on, to those to whom nothing was said yet."""
        self.identity = identity
        self.stateless.introduce(identity.server, identity.instructions)
        for session in self._sessions:
            session.identity = identity

    def rearrange(
        self,
        backends: Iterable[tuple[Settings, Connect]],
        anew: Collection[str] = (),
        removed: Collection[str] = (),
        announced: frozenset[str] = frozenset(),
    ) -> None:
        """Have these backends, in this order, and those that nobody has `removed` after them.

        The ones to be started `anew` are; the others go on, if need be under other settings.
        `announced` are capabilities of which lists differ for some other reason.
        """
        upstreams: list[Upstream] = []
        for settings, connect in backends:
            upstream = self.registry.configured(settings.name)
            if upstream is None or settings.name in anew or _is_given_up(upstream, settings):
                upstream = self._upstream(settings, connect)
            else:
                upstream.adopt(settings, connect)
            upstreams.append(upstream)
        named = {upstream.name for upstream in upstreams}
        rest = [upstream.name for upstream in self.registry if upstream.name not in named]
        upstreams += [
            u for name in rest if name not in removed and (u := self.registry.configured(name))
        ]
        self.registry.rearrange(upstreams, announced)
        for name in removed:
            self.stateless.forget(name)
            for session in self._sessions:
                session.forget(name)

    @property
    def sessions(self) -> frozenset[Session]:
        """The conversations that are going on."""
        return frozenset(self._sessions)

    async def serve(self, channel: Channel, principal: Principal = LOCAL) -> None:
        """Serve one client over `channel`, to its end."""
        session = self._session(principal)
        connection = Connection(
            channel,
            session,
            Peer("client", max_in_flight=MAX_CALLS),
            grace=GRACE,
            withdrawal=withdrawal,
            report=self.report,
        )
        session.trunk = connection
        self._connections.add(connection)
        self._sessions.add(session)
        try:
            await connection.run()
        finally:
            self._connections.discard(connection)
            await self.close(session)

    def open(self, trunk: Trunk, principal: Principal = LOCAL) -> Session:
        """Begin a conversation that is held on `trunk`; whoever begins it closes it."""
        session = self._session(principal)
        session.trunk = trunk
        self._sessions.add(session)
        return session

    def answer(
        self, request: Request, params: Params, principal: Principal, line: Line, mirrors: Mirrors
    ) -> Any:
        """Answer a request of the envelope era that came by HTTP, or return what to await."""
        return self.stateless.answer(request, params, principal, line, mirrors)

    def refused(self, request: Request, principal: Principal, why: RpcError) -> None:
        """Note a request of the envelope era that was refused since its params cannot be read."""
        self.stateless.refuse(request, principal, why)

    @property
    def ready(self) -> bool:
        """Tell whether every backend has been ready, or has failed, once."""
        return self.registry.started

    def readiness(self) -> dict[str, Any]:
        """Return whether clients can be served, as `status`, and which backends are degraded."""
        return readiness(self.registry, self.conceal)

    async def close(self, conversation: Session) -> None:
        """End a conversation."""
        self._sessions.discard(conversation)
        await conversation.aclose()

    def _session(self, principal: Principal) -> Session:
        return Session(self.forwarder, self.identity, principal, self._opened, self.stateless)

    def open_engine(self, principal: Principal = LOCAL) -> "Engine":
        """Return a session without a channel: text in, text out."""
        return Engine(self._session(principal), self.report)

    async def aclose(self) -> None:
        """End all sessions and all backends."""
        self.stateless.end()
        self.stateless.parking.close()
        await asyncio.gather(*(connection.aclose() for connection in set(self._connections)))
        await self.registry.aclose()
        self.layers.events.tell_now()

    def _opened(self, session: Session) -> None:
        if isinstance(session.trunk, Connection):
            batches = allows_batches(session.caller.version)
            session.trunk.peer.batch = "allow" if batches else "reject"
        self._met(session.caller)

    def _met(self, caller: Caller) -> None:
        """Start the backends for the first client that comes, and tell them what it can."""
        if not self.client_capabilities:
            self.client_capabilities = questions(caller.capabilities)
        self.registry.start()
        self.registry.meet(caller.askable)

    # What backends say

    def _moved(self, backend: Snapshot) -> None:
        events = self.layers.events
        if events:
            name, state = backend.name, backend.state.value
            events.tell(BackendMoved(name, state, backend.error, backend.retry_in))
            self._tell_left_out(backend)

    def _tell_left_out(self, backend: Snapshot) -> None:
        """Say what nobody can use of what a backend lists, unless that was said."""
        why = backend.left_out
        if why and self._left_out.get(backend.name) != why:
            self._left_out[backend.name] = why
            self.layers.events.tell(LeftOut(backend.name, why))

    def _catalogue_changed(self, kinds: tuple[Kind, ...]) -> None:
        for backend in self.registry.snapshot():
            self._tell_left_out(backend)
        self.stateless.changed(kinds)
        changed = {kind.capability for kind in kinds}
        for capability in sorted(changed):
            method = f"notifications/{capability}/list_changed"
            for session in self._sessions:
                if session.operational:
                    session.post(method, None)

    async def told(self, backend: str, method: str, params: Any) -> None:
        """Pass on what a backend tells everybody, to those whom it concerns."""
        if backend not in self.registry:
            return  # it has left
        if not self.layers.hears(None, backend):
            return
        if method == "notifications/resources/updated":
            self._updated(backend, Params(params))
            return
        if method == "notifications/elicitation/complete":
            elicitation = Params(params).text("elicitationId")
            self.stateless.parking.visited(backend, elicitation)
        known = SERVER_NOTIFICATIONS.get(method)
        sessions = [s for s in self._sessions if s.operational and self._hears(s, backend)]
        if method == "notifications/message":
            # Those who said what they want to read, if anybody did.
            sessions = [s for s in sessions if s.caller.log_level is not None] or sessions
            # With calls of several clients, or it would not have come here.
            busy = self.registry.upstream(backend).busy
            if busy or len(sessions) > 1:
                return  # whose it is cannot be known, and it is nobody else's business
        for session in sessions:
            if known is None or session.caller.version in known.versions:
                session.post(method, params)

    def _updated(self, backend: str, params: Params) -> None:
        """Tell those who follow a resource, under the URI by which they know it."""
        native = params.text("uri")
        params.drop_meta(frozenset((SUBSCRIPTION,)))  # nobody hears under whose id we listen
        listed = self._public_uri(backend, native)
        self.stateless.updated(backend, native, listed, params.encode())
        for session in self._sessions:
            followed = session.follows(backend, native)
            if not self._hears(session, backend) or followed is None:
                continue
            if self.forwarder.may_hear(session.caller, backend, native, listed):
                params.put("uri", listed or followed)
                session.post("notifications/resources/updated", params.encode())

    def _hears(self, session: Session, backend: str) -> bool:
        """Tell whether what a backend says by itself reaches a client: both are there for it."""
        if not session.initialized or not self.layers.hears(session.caller, backend):
            return False
        return self.registry.view.knows(self.registry.catalog, session.caller, backend)

    def _public_uri(self, backend: str, native: str) -> str | None:
        for entry in self.registry.catalog.entries(Kind.RESOURCE):
            if (entry.backend, entry.native) == (backend, native):
                return entry.public
        return None

    async def asked(self, backend: str, method: str, params: Any, asker: Asker | None) -> Raw:
        """Ask the one client there is; with several, nobody can know whom a backend means."""
        sessions = [session for session in self._sessions if session.initialized]
        if len(sessions) != 1 or not self._hears(sessions[0], backend):
            raise RpcError.method_not_found(method)
        return await sessions[0].ask(method, params, asker)


def _is_given_up(upstream: Upstream, settings: Settings) -> bool:
    """Tell whether one is not started any more, unless it gets another chance."""
    return upstream.state is State.FAILED and upstream.settings != settings


class _Ear:
    """Hears one backend, and tells the gateway which one it was."""

    def __init__(self, gateway: Gateway, backend: str) -> None:
        self._gateway = gateway
        self._backend = backend

    def offers_changed(self, capability: str) -> None:
        """Leave it to the Upstream, which has seen to it."""

    def session_renewed(self) -> None:
        """Leave it to the Upstream, which has seen to it."""

    async def told(self, method: str, params: Any) -> None:
        await self._gateway.told(self._backend, method, params)

    async def asked(self, method: str, params: Any, asker: Asker | None = None) -> Raw:
        return await self._gateway.asked(self._backend, method, params, asker)


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
