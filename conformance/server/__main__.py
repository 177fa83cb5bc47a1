"""Run the server: `python -m conformance.server --stdio`, or `--http PORT`."""

import argparse
import asyncio
import warnings

import uvicorn
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPDeprecationWarning

from conformance.server.events import Events
from conformance.server.fixture import fixture

RETRY = 200  # milliseconds until a client may resume a stream


def main() -> None:
    """Parse the command line and serve."""
    # Logs, sampling and roots are deprecated, but the suite checks all three.
    warnings.simplefilter("ignore", MCPDeprecationWarning)
    parser = argparse.ArgumentParser(prog="python -m conformance.server", description=__doc__)
    how = parser.add_mutually_exclusive_group(required=True)
    how.add_argument("--stdio", action="store_true", help="over stdin and stdout")
    how.add_argument("--http", type=int, metavar="PORT", help="at http://127.0.0.1:PORT/mcp")
    options = parser.parse_args()
    if options.stdio:
        asyncio.run(over_stdio())
    else:
        app = fixture().streamable_http_app(event_store=Events(), retry_interval=RETRY)
        # httptools keeps trailing spaces of header values, which fails a scenario.
        uvicorn.run(
            app,
            port=options.http,
            http="h11",
            loop="asyncio",
            log_level="warning",
            timeout_graceful_shutdown=1,
        )


async def over_stdio() -> None:
    """Serve one client, until stdin ends."""
    server = fixture()
    async with stdio_server() as (reader, writer):
        await server.run(reader, writer, server.create_initialization_options())


if __name__ == "__main__":
    main()
