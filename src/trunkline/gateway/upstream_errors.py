"""The errors that clients of one upstream get: what went wrong, in their revision.

Invariant: no error has a configured secret in its text or data.
"""

from collections.abc import Callable
from typing import Any

from trunkline.gateway.settings import UpstreamSettings, UpstreamState
from trunkline.jsonrpc import ConnectionLost, MalformedResponse, RpcError, UnreadableAnswer
from trunkline.mcp.compat import adapt_error
from trunkline.mcp.errors import ErrorKind, gateway_error, mask_error
from trunkline.mcp.results import MalformedResult
from trunkline.mcp.versions import Revision


class UpstreamErrors:
    """Makes the errors about one upstream."""

    def __init__(
        self,
        settings: UpstreamSettings,
        mask: Callable[[str], str],
        read_state: Callable[[], tuple[UpstreamState, float | None]],
    ) -> None:
        """`read_state` returns the state, and in how many seconds a start is tried again."""
        self.settings = settings
        self._mask = mask
        self._read_state = read_state

    def translate(
        self, error: BaseException, server_revision: Revision, revision: Revision
    ) -> BaseException:
        """Return the error of a call for a client of `revision`."""
        if isinstance(error, MalformedResponse | MalformedResult):
            return self.failed(error.message, revision)
        if isinstance(error, RpcError):
            return adapt_error(mask_error(error, self._mask), server_revision, revision)
        if isinstance(error, UnreadableAnswer):
            return self.failed(str(error), revision)
        if isinstance(error, TimeoutError):
            reason = str(error) or f"did not answer within {self.settings.timeout:g} s"
            text = f"{self.settings.name} {reason}"
            return gateway_error(
                ErrorKind.UPSTREAM_TIMEOUT, text, revision, server=self.settings.name
            )
        if isinstance(error, ConnectionLost):
            return self.unavailable(revision, str(error), getattr(error, "retry_after", None))
        return error

    def failed(self, reason: str, revision: Revision) -> RpcError:
        """Return the error for a call with a malformed answer."""
        text = f"Upstream failed: {self.settings.name}: {self._mask(reason)}"
        return gateway_error(ErrorKind.UPSTREAM_FAILED, text, revision, server=self.settings.name)

    def unavailable(
        self, revision: Revision, reason: str, retry_after: float | None = None
    ) -> RpcError:
        """Return the error; `retry_after` is the delay that the backend asked for, if any."""
        state, retry_in = self._read_state()
        data: dict[str, Any] = {"server": self.settings.name, "state": state.value}
        retry_in = retry_in if retry_after is None else retry_after
        if retry_in is not None:
            data["retryAfter"] = retry_in
        text = f"Upstream unavailable: {self.settings.name}: {self._mask(reason)}"
        return gateway_error(ErrorKind.UPSTREAM_UNAVAILABLE, text, revision, **data)
