"""What a server says when it does not answer: a status that is no success, and what that means.

Refuses to decide what follows from it: that is up to whoever asked.
"""

from trunkline.jsonrpc import ConnectionLost, RpcError


class HttpRefused(ConnectionLost):
    """The server answered with a status that is no success."""

    def __init__(
        self,
        status: int,
        error: RpcError | None = None,
        retry_after: float | None = None,
        astray: bool = False,
    ) -> None:
        """Say so; `astray` is an error that is addressed to nobody, or to somebody else."""
        detail = f": {error.message}" if error is not None else ""
        super().__init__(f"the server answered HTTP {status}{detail}")
        self.status = status
        self.error = error
        self.retry_after = retry_after
        self.astray = astray
        self.excused = status < 500

    @property
    def passes(self) -> bool:
        """Tell whether it may be otherwise in a while."""
        return self.status in (408, 409, 425, 429) or self.status >= 500


class SessionLost(HttpRefused):
    """The server does not know our session any more, or is not the one that we began it with."""

    def __init__(self, why: HttpRefused, heard: bool) -> None:
        """Say so; `heard` is whether it may have looked at what we asked."""
        super().__init__(why.status, why.error)
        self.heard = heard
