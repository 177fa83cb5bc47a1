"""Secondary sessions: which calls need one, and their messages."""

import asyncio
from typing import Any

import pytest

from tests.contexts import call_of, start_call
from tests.gateway.servers import SilentBackend
from tests.tasks import hang_guard
from trunkline.gateway.backend import BackendAbilities, BackendOwner, ServerRequestMode
from trunkline.gateway.call_context import CallContext
from trunkline.gateway.secondary_sessions import (
    SecondaryListener,
    make_primary_session,
    needs_pooled_session,
)
from trunkline.gateway.settings import UpstreamSettings
from trunkline.gateway.upstream import Upstream, UpstreamState
from trunkline.jsonrpc import PendingResult, Raw, RpcError, from_raw, to_raw
from trunkline.mcp.capabilities import read_client_features
from trunkline.mcp.identity import Caller, Principal
from trunkline.mcp.versions import V2025_11_25, V2026_07_28, Revision

SAMPLING: dict[str, Any] = {"sampling": {}}
BOTH: dict[str, Any] = {"sampling": {}, "elicitation": {"form": {}}}


class Recorder:
    """Records messages, and is the client of calls."""

    address = ""
    has_pending_requests = False
    client_capabilities = None

    def __init__(self, capabilities: Any = None, revision: Revision = V2026_07_28) -> None:
        self.notifications: list[str] = []
        self.caller = Caller(Principal("p"), revision, capabilities or {}, Raw(b"{}"))

    @property
    def call_group(self) -> Any:
        return self

    def on_features_changed(self, capability: str) -> None:
        self.notifications.append(capability)

    def on_session_renewed(self) -> None:
        self.notifications.append("renewed")

    async def on_notification(self, method: str, params: Any) -> None:
        self.notifications.append(method)

    async def on_request(self, method: str, params: Any, requester: object = None) -> Raw:
        raise NotImplementedError

    async def send_request(self, method: str, params: Any, requester: object = None) -> Raw:
        raise NotImplementedError

    async def notify(self, method: str, params: Any) -> None: ...

    def queue_notification(self, method: str, params: Any) -> None: ...

    def call(self, method: str = "tools/call") -> CallContext:
        return call_of(self, Raw(b"{}"), method=method)


class FeatureEchoBackend(SilentBackend):
    """A server that answers with the features announced to it."""

    def __init__(self, declared: frozenset[str] | None, has_per_call_streams: bool = True) -> None:
        super().__init__()
        self.features = " ".join(sorted(declared or ()))
        mode = None if declared is None else ServerRequestMode(declared, has_per_call_streams)
        self.abilities = BackendAbilities(server_requests=mode)

    def call(self, context: CallContext) -> PendingResult:
        return PendingResult.from_result(to_raw({"content": [], "features": self.features}))

    async def aclose(self) -> None:
        self.ended.set()


ANYTHING = read_client_features(BOTH)


@pytest.mark.parametrize(
    ("announced", "per_call_streams", "revision", "capabilities", "needed"),
    [
        (None, True, V2026_07_28, BOTH, False),  # it sends no requests during calls
        (frozenset[str](), False, V2026_07_28, {}, False),  # no announced features
        (frozenset[str](), False, V2025_11_25, SAMPLING, True),
        (ANYTHING, False, V2025_11_25, {}, True),
        (ANYTHING, True, V2026_07_28, SAMPLING, True),
        (frozenset[str](), True, V2026_07_28, SAMPLING, True),
        (ANYTHING, True, V2026_07_28, BOTH, False),  # the primary session announced the same
        (ANYTHING, True, V2026_07_28, {}, False),
        (ANYTHING, True, V2025_11_25, SAMPLING, False),
    ],
)
def test_a_call_needs_its_own_session_if_requests_would_be_wrong_or_ambiguous(
    announced: frozenset[str] | None,
    per_call_streams: bool,
    revision: Revision,
    capabilities: Any,
    needed: bool,
) -> None:
    listener = Recorder(capabilities, revision)
    first = make_primary_session(FeatureEchoBackend(announced, per_call_streams))
    assert needs_pooled_session(listener.call(), first) is needed
    assert not needs_pooled_session(listener.call("completion/complete"), first)


async def test_changes_in_a_secondary_session_are_reported_and_its_requests_refused() -> None:
    listener = Recorder()
    secondary = SecondaryListener(listener, SAMPLING)
    secondary.on_features_changed("tools")
    secondary.on_session_renewed()
    await secondary.on_notification("notifications/message", None)
    assert listener.notifications == ["tools", "notifications/message"]
    with pytest.raises(RpcError, match="not found"):
        await secondary.on_request("roots/list", None)


@pytest.mark.holds("T31")
async def test_a_server_with_per_call_streams_learns_the_features_of_each_client() -> None:
    opened: list[Any] = []
    ready = asyncio.Event()

    async def connect(owner: BackendOwner) -> FeatureEchoBackend:
        opened.append(owner.client_capabilities)
        return FeatureEchoBackend(
            read_client_features(
                BOTH if owner.client_capabilities is None else owner.client_capabilities
            )
        )

    def changed(_: frozenset[str]) -> None:
        if upstream.state is UpstreamState.READY:
            ready.set()

    upstream = Upstream(UpstreamSettings("s", "s"), connect, changed, Recorder(), lambda: 0.0)
    running = asyncio.create_task(upstream.run())
    async with hang_guard():
        await ready.wait()
        clients = [
            Recorder(SAMPLING),
            Recorder(SAMPLING),
            Recorder(BOTH),
            Recorder(),
        ]
        answers = [await start_call(upstream, client.call()) for client in clients]
    features = [from_raw(answer, dict[str, Any])["features"] for answer in answers]
    both = "elicitation.form sampling"
    assert features == ["sampling", "sampling", both, both]
    assert opened == [None, SAMPLING]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
