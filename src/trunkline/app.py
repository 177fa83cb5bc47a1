"""The composition root: puts the parts together and runs them.

Until the gateway exists this serves the engine itself: a few methods that show, over stdio and over
a local port, that it works.
"""

import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from trunkline import __version__
from trunkline.jsonrpc import Connection, Dispatcher, RpcError
from trunkline.transports.stream import StreamChannel, listen_tcp, open_stdio

Log = Callable[[str], None]


def demonstration() -> Dispatcher:
    """Return the methods that stand in for the gateway."""
    dispatcher = Dispatcher(batch="allow")

    @dispatcher.method("ping")
    def ping() -> dict[str, Any]:  # pyright: ignore[reportUnusedFunction]
        return {}

    return dispatcher
