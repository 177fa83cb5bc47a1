"""What every backend says of itself, so that calls can be told apart."""

from trunkline.backends.functions import Functions
from trunkline.backends.remote import Remote
from trunkline.gateway.backend import Backend, Listener


class Ear:
    """Hears nothing."""

    def offers_changed(self, capability: str) -> None: ...

    def session_renewed(self) -> None: ...

    async def told(self, method: str, params: object) -> None: ...

    async def asked(self, method: str, params: object, asker: object = None) -> object: ...


def test_functions_ask_nothing_and_a_server_may_ask_once_it_was_told_so() -> None:
    functions: Backend = Functions()
    assert (functions.declared, functions.tells_calls_apart) == (None, True)
    ear: Listener = Ear()  # pyright: ignore[reportAssignmentType]  it is never heard
    remote: Backend = Remote(ear)
    assert (remote.declared, remote.tells_calls_apart) == (frozenset(), False)
