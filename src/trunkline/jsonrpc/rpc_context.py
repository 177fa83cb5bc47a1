"""RpcContext: what a function of a Dispatcher knows of the message that it handles.

    @methods.method("import")
    async def import_files(folder: str, context: RpcContext) -> int:
        await context.notify("import.progress", {"done": 0})
        if not await context.call("confirm", {"folder": folder}, result=bool): ...

The annotation asks for it; the parameter may have any name and place, and callers never see it.
"""

import asyncio
from typing import Any, TypeVar, overload

from trunkline.jsonrpc.connection import Connection
from trunkline.jsonrpc.errors import LocalProtocolError
from trunkline.jsonrpc.message import Id
from trunkline.jsonrpc.pending import PendingResult, as_pending
from trunkline.jsonrpc.raw_json import UNSET, Raw, UnsetType

T = TypeVar("T")


class RpcContext:
    """One request or notification, and the way back to the side that sent it."""

    __slots__ = ("_cancelled", "_connection", "_task", "method", "request_id")

    def __init__(
        self,
        method: str,
        request_id: Id | UnsetType = UNSET,
        connection: Connection | None = None,
    ) -> None:
        """Describe a message; a notification has no `request_id`."""
        self.method = method
        self.request_id = request_id
        self._connection = connection
        self._task: asyncio.Future[Any] | None = None
        self._cancelled = False

    @property
    def is_notification(self) -> bool:
        """Whether the other side expects no response."""
        return self.request_id is UNSET

    @property
    def connection(self) -> Connection:
        """The connection of the message; raises LocalProtocolError after `Dispatcher.handle`."""
        if self._connection is None:
            raise LocalProtocolError(
                f"{self.method!r} has no connection: pass the dispatcher to a Connection"
            )
        return self._connection

    @property
    def is_cancelled(self) -> bool:
        """Whether the message was cancelled: by the other side, or because the connection ended.

        An async function gets a CancelledError then. A thread that it started can ask here.
        """
        task = self._task
        return self._cancelled or (isinstance(task, asyncio.Task) and task.cancelling() > 0)

    @overload
    async def call(
        self, method: str, params: Any = UNSET, *, timeout: float | None = None
    ) -> Raw: ...
    @overload
    async def call(
        self, method: str, params: Any = UNSET, *, result: type[T], timeout: float | None = None
    ) -> T: ...
    @overload
    async def call(
        self, method: str, params: Any = UNSET, *, result: Any, timeout: float | None = None
    ) -> Any: ...
    async def call(
        self,
        method: str,
        params: Any = UNSET,
        *,
        result: Any = UNSET,
        timeout: float | None = None,
    ) -> Any:
        """Send a request to the other side and return its result, as `Connection.call` does."""
        return await self.connection.call(
            method, params, result=result, timeout=timeout, overtake=self.is_notification
        )

    async def notify(self, method: str, params: Any = UNSET) -> None:
        """Send a notification to the other side; raises ConnectionLost."""
        await self.connection.notify(method, params)

    def watch(self, outcome: Any) -> Any:
        """Follow what the function returned, to know of its cancellation; return it."""
        outcome = as_pending(outcome)
        if isinstance(outcome, PendingResult):
            self._task = outcome.task
            outcome.add_callback(self._finish)
        return outcome

    def _finish(self, outcome: PendingResult) -> None:
        # The task is dropped: its frames refer to this context.
        self._cancelled = self.is_cancelled or isinstance(outcome.error, asyncio.CancelledError)
        self._task = None
