"""The abilities of backends."""

from trunkline.backends.functions import FunctionBackend
from trunkline.backends.session_server import SessionServer
from trunkline.backends.stateless_server import StatelessServer
from trunkline.gateway.backend import (
    Backend,
    BackendAbilities,
    BackendListener,
    ServerRequestMode,
)


class Recorder:
    """Ignores all messages."""

    def on_features_changed(self, capability: str) -> None: ...

    def on_session_renewed(self) -> None: ...

    async def on_notification(self, method: str, params: object) -> None: ...

    async def on_request(self, method: str, params: object, requester: object = None) -> object: ...


def missing(backend: Backend) -> set[str]:
    """Return the names of the abilities that a backend lacks."""
    return {name for name, value in backend.abilities._asdict().items() if value is None}


def test_a_backend_has_the_abilities_of_its_protocol_and_functions_have_none() -> None:
    listener: BackendListener = Recorder()  # pyright: ignore[reportAssignmentType]  never used
    assert FunctionBackend().abilities == BackendAbilities()
    assert missing(SessionServer(listener)) == set()
    assert missing(StatelessServer(listener, {}, over_http=False)) == {
        "notify",
        "set_log_level",
        "server_requests",
        "wait_answered",
        "is_unfit_for_others",
        "refuse_requests",
    }


def test_a_server_sends_no_requests_before_the_features_of_clients_are_announced() -> None:
    listener: BackendListener = Recorder()  # pyright: ignore[reportAssignmentType]  never used
    mode = SessionServer(listener).abilities.server_requests
    assert mode == ServerRequestMode(frozenset(), has_per_call_streams=False)
