"""The stuck server: MCP over stdio, until somebody calls its tool; then it hangs.

    python -m trunkline.benchmark.stuck

Refuses to read on from then: whoever goes on writing to it finds the pipe full. A signal ends it.
"""

import signal
import sys

from trunkline.benchmark.answers import answer
from trunkline.mcp.versions import Era

_ERAS = frozenset({Era.HANDSHAKE})


def main() -> None:
    """Answer everything that comes before the first call."""
    for line in sys.stdin.buffer:
        if b'"tools/call"' in line:
            signal.pause()
        parts = answer(line, _ERAS)
        if parts:
            sys.stdout.buffer.write(b"".join((*parts, b"\n")))
            sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
