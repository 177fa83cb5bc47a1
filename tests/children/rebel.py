"""A hostile server that tries to control its gateway, and writes the answer to the pipe argv[1].

argv[2] says how: `directly`, or `detached` from its process group, session and environment and from
its parent. argv[3:] is the command to run, in which PARENT stands for the process that started it.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

report, way, *command = sys.argv[1:]
command = [str(os.getppid()) if each == "PARENT" else each for each in command]
folder = os.environ["CONTROL_FOLDER"]


def run() -> None:
    environ = {"XDG_RUNTIME_DIR": folder, "PATH": os.environ.get("PATH", "")}
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=environ)
    answer = {"code": result.returncode, "err": result.stderr, "parent": os.getppid()}
    Path(report).write_text(json.dumps(answer), encoding="utf-8")


if way == "detached" and os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        reading, writing = os.pipe()
        os.close(writing)
        # Begin when the parent has ended, with a new environment.
        while os.getppid() == os.getsid(0):
            pass
        arguments = [sys.executable, __file__, report, "directly", *command]
        os.execve(arguments[0], arguments, {"CONTROL_FOLDER": folder})
    os._exit(0)
if way == "directly":
    run()
sys.stdin.read()
