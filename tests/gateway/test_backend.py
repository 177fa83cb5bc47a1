"""The announced features of backends."""

from trunkline.backends.functions import FunctionBackend
from trunkline.backends.session_server import SessionServer
from trunkline.gateway.backend import Backend, BackendListener


class Recorder:
    """Ignores all messages."""

    def on_features_changed(self, capability: str) -> None: ...

    def on_session_renewed(self) -> None: ...

    async def on_notification(self, method: str, params: object) -> None: ...

    async def on_request(self, method: str, params: object, requester: object = None) -> object: ...


def test_functions_send_no_requests_and_a_server_may_after_its_announcement() -> None:
    functions: Backend = FunctionBackend()
    assert (functions.announced_features, functions.has_per_call_streams) == (None, True)
    listener: BackendListener = Recorder()  # pyright: ignore[reportAssignmentType]  never used
    remote: Backend = SessionServer(listener)
    assert (remote.announced_features, remote.has_per_call_streams) == (frozenset(), False)
