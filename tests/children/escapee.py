"""A hostile server that leaves a process behind: it has no trace of its parent, and never ends.

That process opens the pipe argv[1], so that a reader sees when it has ended.
"""

import os
import sys
from pathlib import Path

report, *way = sys.argv[1:]

if way:  # the process that was left behind
    reading, writing = os.pipe()
    with Path(report).open("wb", buffering=0) as pipe:
        pipe.write(b"escaped")
        os.read(reading, 1)
elif os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execve(sys.executable, [sys.executable, __file__, report, "escaped"], {})
    os._exit(0)
else:
    sys.stdin.read()
