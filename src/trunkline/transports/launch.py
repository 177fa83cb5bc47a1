"""Starting a child process: what it inherits, how it is tied to us, and why it could not be.

    argv, a few variables ──> spawn ──> Popen, in a session of its own, known to the warden

Refuses to use a shell, and to let a child inherit what was not asked for: its environment is a
short list of names, what the caller adds, and a token; what a name says to be secret is never
passed on unasked.
"""

import asyncio
import ctypes
import errno
import os
import re
import shutil
import signal
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from subprocess import PIPE, Popen

from trunkline.jsonrpc import ConnectionLost
from trunkline.transports.warden import Warden

_ALLOWED = re.compile(
    "PATH|HOME|USER|LOGNAME|SHELL|LANG|TERM|TMPDIR|TZ|NODE_PATH|NVM_DIR|NVM_BIN|SSL_CERT_FILE"
    "|SSL_CERT_DIR|NODE_EXTRA_CA_CERTS|HTTPS?_PROXY|https?_proxy|NO_PROXY|no_proxy"
    "|(LC|npm_config|NPM_CONFIG|PIP|UV)_.*"
)
_SECRET = re.compile("auth|credential|key(?!ring)|pass|secret|token", re.IGNORECASE)


class ChildFailed(ConnectionLost):
    """A child could not be started: `why`, and what may help, `fix`."""

    def __init__(self, argv0: str, why: str, fix: str) -> None:
        super().__init__(f"cannot start {argv0!r}: {why}; {fix}")
        self.argv0, self.why, self.fix = argv0, why, fix


def child_environment(parent: Mapping[str, str], extra: Mapping[str, str]) -> dict[str, str]:
    """Return what a child may see of `parent`, and all of `extra`."""
    return {name: value for name, value in parent.items() if _is_passed_on(name, value)} | {**extra}


def _is_passed_on(name: str, value: str) -> bool:
    # Whoever wants a private registry's token to be in a child's environment has to say so. And
    # "()" begins a function that bash exported, to be run by the next bash.
    harmless = not _SECRET.search(name) and not value.startswith("()")
    return harmless and _ALLOWED.fullmatch(name) is not None


def spawn(
    argv: list[str], env: dict[str, str], cwd: str | os.PathLike[str] | None, token: str
) -> "Popen[bytes]":
    """Start a process that the warden knows of."""
    if not argv:
        raise ChildFailed("", "expected a command, got none", "name a program to run")
    warden = Warden.of(asyncio.get_running_loop())
    try:
        # Before there is a process: if we die in between, the token is known.
        warden.register(token)
    except OSError as error:
        warden.unregister(token)
        why = f"no process can watch over it ({error})"
        raise ChildFailed(argv[0], why, f"can {sys.executable!r} be run?") from error
    try:
        process = Popen(  # noqa: S603  running what was configured is the point
            argv,
            bufsize=0,
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            env=env,
            cwd=cwd,
            start_new_session=True,
            preexec_fn=partial(_prepare, os.getpid()),  # noqa: PLW1509  it takes no lock
        )
    except Exception as error:
        warden.unregister(token)
        raise ChildFailed(argv[0], *_diagnosis(argv[0], env, cwd, error)) from error
    warden.register(token, process.pid)
    return process


def _prepare(parent: int) -> None:
    """Do, in a child, what is to be done between its birth and becoming another program."""
    # What we ignore, handle or block is no concern of a child, and it must be mortal.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    if sys.platform == "linux":
        _libc.prctl(1, signal.SIGTERM, 0, 0, 0)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:
            os._exit(1)  # it died before we asked to be told


# Looked up here: nothing may be imported or loaded between fork and exec.
_libc = ctypes.CDLL(None)
if sys.platform == "linux":
    _libc.prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]


def _diagnosis(
    argv0: str, env: dict[str, str], cwd: str | os.PathLike[str] | None, error: Exception
) -> tuple[str, str]:
    """Say why a program could not be started, and what may help."""
    if cwd is not None and not Path(cwd).is_dir():
        return f"there is no directory {os.fspath(cwd)!r}", "create it, or set another cwd"
    if isinstance(error, FileNotFoundError):
        place = str(Path(cwd or ".") / argv0) if "/" in argv0 else argv0
        if shutil.which(place, path=env.get("PATH")):
            return "it exists, but what its first line names does not", "is that installed?"
        # Where others have a shell take a command apart, we do not.
        hint = " If it has arguments in it: they belong into args" if " " in argv0 else ""
        if "/" in argv0:
            return "there is no such file", f"is the path right, and absolute?{hint}"
        return "there is no such command", f"is it installed, and on PATH?{hint}"
    if isinstance(error, PermissionError):
        return "it may not be executed", "is it a program, with permission to run (chmod +x)?"
    if isinstance(error, OSError) and error.errno == errno.ENOEXEC:
        return "it is no program for this machine", "does it lack a first line such as #!/bin/sh?"
    return str(error), "check its arguments and environment, and the limits of this system"
