"""The launcher: a small process that restricts itself and then becomes the server.

    gateway ── the launch, as JSON ──> launcher ── user, files, network, limits ──> exec
            <── the error, as JSON ──┘              (the socket closes: it worked)

The gateway runs this very file (`python -I -S -E`), so it imports only the standard library. The
kernel enforces everything set here, also for the descendants of the server. `stdio.sandbox` decides
which restrictions are set, and uses the two functions that ask the kernel for its abilities.

Invariants:
1. The program starts only if every restriction was set. Otherwise the launcher reports the
   setting and the reason, and exits.
2. The program inherits no descriptor but its stdin, stdout and stderr.
"""

import ctypes
import json
import os
import resource
import signal
import stat
import struct
import sys
import warnings  # noqa: F401  # pyright: ignore[reportUnusedImport]  os.execvpe imports it
from contextlib import suppress

# Nothing is imported later: another user may not be allowed to read this Python.

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, NoReturn

EXIT_CODE = 126
"""The exit code of a launcher that could not start the program."""

MIN_LANDLOCK_ABI = 3
"""Before this version (Linux 6.2) Landlock does not restrict `truncate`."""

_MAX_LAUNCH_BYTES = 8 * 1024 * 1024

_PR_SET_PDEATHSIG, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 1, 22, 38
_CLONE_NEWUSER = 0x10000000

# The same numbers on all architectures.
_LANDLOCK_CREATE_RULESET, _LANDLOCK_ADD_RULE, _LANDLOCK_RESTRICT_SELF = 444, 445, 446

# linux/landlock.h: the bits of `handled_access_fs`
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_MAKE_CHAR, _MAKE_BLOCK, _TRUNCATE, _IOCTL_DEV = 1 << 6, 1 << 11, 1 << 14, 1 << 15
_ALL_OF_ABI_3, _ALL_OF_ABI_5 = (1 << 15) - 1, (1 << 16) - 1
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
_SCOPE_SIGNAL = 1 << 1

# By machine: the architecture in linux/audit.h, and the number of the system call `socket`
_SECCOMP_ARCHITECTURES = {"x86_64": (0xC000003E, 41), "aarch64": (0xC00000B7, 198)}
_IO_URING_SETUP = 425
_EACCES, _AF_UNIX = 13, 1
_NAMESPACED_FAMILIES = (_AF_UNIX, 2, 10, 16)  # the others are AF_INET, AF_INET6 and AF_NETLINK


class _CannotEnforceError(Exception):
    """A restriction that this machine refuses; `key` is its setting."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(reason)
        self.key, self.reason = key, reason


def landlock_abi() -> int:
    """Return the version of Landlock in this kernel, 0 without Landlock."""
    if sys.platform != "linux":
        return 0
    return max(0, _libc().syscall(_LANDLOCK_CREATE_RULESET, None, 0, 1))


def can_filter_sockets() -> bool:
    """Whether this module knows the system calls of this machine."""
    return sys.platform == "linux" and os.uname().machine in _SECCOMP_ARCHITECTURES


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _require(result: int, key: str, what: str) -> int:
    if result < 0:
        raise _CannotEnforceError(key, f"{what}: {os.strerror(ctypes.get_errno())}")
    return result


def _prctl(key: str, what: str, *arguments: "Any") -> None:
    values = [*arguments, 0, 0, 0][:4]
    integers = [ctypes.c_ulong(each) if isinstance(each, int) else each for each in values[1:]]
    _require(_libc().prctl(ctypes.c_int(values[0]), *integers, ctypes.c_ulong(0)), key, what)


# The restrictions, in the order in which they are set


def _set_user(user: "dict[str, Any]") -> None:
    """Change to another user; the gateway runs as root then."""
    try:
        os.setgroups(user["groups"])
        os.setgid(user["gid"])
        os.setuid(user["uid"])
    except OSError as error:
        reason = f"the kernel refuses it: {error.strerror}"
        raise _CannotEnforceError("user", reason) from error
    folder = os.getcwd()  # noqa: PTH109  without pathlib, the launcher starts faster
    try:
        # The gateway may have entered a folder that this user cannot reach by its path.
        os.chdir(folder)
    except OSError as error:
        reason = f"the user cannot enter the working directory {folder!r}: {error.strerror}"
        raise _CannotEnforceError("user", reason) from error


def _enter_user_namespace() -> None:
    """Enter a user namespace, in which the kernel counts the processes of this server only."""
    uid, gid = os.geteuid(), os.getegid()
    result = _libc().unshare(ctypes.c_int(_CLONE_NEWUSER))
    _require(result, "processes", "user namespaces are not allowed here")
    maps = (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1"))
    for name, text in maps:
        file = os.open(f"/proc/self/{name}", os.O_WRONLY)
        os.write(file, text.encode())
        os.close(file)


def _drop_privileges() -> None:
    """Give up all capabilities, also those of root, and gain none by executing a program."""
    _prctl("no_new_privs", "the kernel refuses it", _PR_SET_NO_NEW_PRIVS, 1)
    # linux/capability.h: version 3, this process, and two empty sets of each kind
    header, data = struct.pack("=Ii", 0x20080522, 0), bytes(24)
    _require(_libc().capset(header, data), "no_new_privs", "capabilities cannot be dropped")


def _restrict_files(read_only: "Iterable[str]", writable: "Iterable[str]") -> None:
    """Allow access below these paths only, with Landlock; paths that do not exist are skipped."""
    abi, libc = landlock_abi(), _libc()
    handled = _ALL_OF_ABI_3 if abi < 5 else _ALL_OF_ABI_5
    # From version 6 on, also no signals to processes outside.
    attributes = struct.pack("=QQQ", handled, 0, _SCOPE_SIGNAL if abi >= 6 else 0)
    size = 24 if abi >= 6 else 8
    ruleset = libc.syscall(_LANDLOCK_CREATE_RULESET, attributes, ctypes.c_size_t(size), 0)
    _require(ruleset, "read_only", "the kernel refuses Landlock")
    for paths, rights in ((read_only, _READ), (writable, handled & ~(_MAKE_CHAR | _MAKE_BLOCK))):
        for path in paths:
            with suppress(OSError):
                _allow_below(ruleset, path, rights)
    _require(
        libc.syscall(_LANDLOCK_RESTRICT_SELF, ruleset, 0),
        "read_only",
        "the kernel refuses Landlock",
    )
    os.close(ruleset)


def _allow_below(ruleset: int, path: str, rights: int) -> None:
    folder = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        if not stat.S_ISDIR(os.fstat(folder).st_mode):
            rights &= _OF_FILES
        rule = struct.pack("=Qi", rights, folder)
        result = _libc().syscall(_LANDLOCK_ADD_RULE, ruleset, 1, rule, 0)
        _require(result, "read_only", f"Landlock refuses {path!r}")
    finally:
        os.close(folder)


def _refuse_sockets(families: str) -> None:
    """Refuse new sockets of some families, as `_socket_filter` says.

    Landlock does not restrict Unix sockets. Behind them are programs such as the session bus, which
    would read files and start programs for the server. Socket pairs are not affected.
    """
    program = _socket_filter(families)
    code = ctypes.create_string_buffer(program)
    filter_program = struct.pack("HL", len(program) // 8, ctypes.addressof(code))
    key = "network" if families == "all" else "read_only"
    _prctl(key, "the kernel refuses seccomp filters", _PR_SET_SECCOMP, 2, filter_program)


def _with_filter(command: "list[str]") -> "list[str]":
    """Return a command of bubblewrap that also refuses sockets outside of its network namespace."""
    file = os.memfd_create("filter", 0)  # inherited: bubblewrap reads and closes it
    os.write(file, _socket_filter("foreign"))
    os.lseek(file, 0, os.SEEK_SET)
    return [command[0], "--seccomp", str(file), *command[1:]]


def _socket_filter(families: str) -> bytes:
    """Return a seccomp filter that refuses sockets, and io_uring, which can create them as well.

    It refuses "all" sockets, those of the family "unix", or those that are "foreign" to network
    namespaces, such as VSOCK, by which a virtual machine reaches its host.
    """
    architecture, socket = _SECCOMP_ARCHITECTURES[os.uname().machine]
    load, equal, at_least, back = 0x20, 0x15, 0x35, 0x06
    kill, refuse, allow = 0x80000000, 0x00050000 | _EACCES, 0x7FFF0000
    listed = {"all": (), "unix": (_AF_UNIX,), "foreign": _NAMESPACED_FAMILIES}[families]
    others, those = (allow, refuse) if families == "unix" else (refuse, allow)
    # Each: operation, steps to skip if true, and if false, operand. In `struct seccomp_data` the
    # number of the call is at offset 0, the architecture at 4, the first argument at 16. Numbers
    # from 0x40000000 on belong to x32, which has its own `socket`.
    program = (
        (load, 0, 0, 4),
        (equal, 1, 0, architecture),
        (back, 0, 0, kill),
        (load, 0, 0, 0),
        (at_least, 3, 0, 0x40000000),
        (equal, 2, 0, _IO_URING_SETUP),
        (equal, 2, 0, socket),
        (back, 0, 0, allow),
        (back, 0, 0, refuse),
        (load, 0, 0, 16),
        *((equal, len(listed) - at, 0, family) for at, family in enumerate(listed)),
        (back, 0, 0, others),
        (back, 0, 0, those),
    )
    return b"".join(struct.pack("=HBBI", *each) for each in program)


def _set_limits(limits: "dict[str, int]") -> None:
    """Set resource limits by the name of their setting; never raise a lower limit."""
    numbers = {
        # Not RLIMIT_AS: V8 reserves 1 GB of addresses that it does not use.
        "memory_mib": resource.RLIMIT_DATA,
        "cpu_seconds": resource.RLIMIT_CPU,
        "processes": resource.RLIMIT_NPROC,
    }
    for key, value in limits.items():
        _, highest = resource.getrlimit(numbers[key])
        allowed = value if highest == resource.RLIM_INFINITY else min(value, highest)
        try:
            resource.setrlimit(numbers[key], (allowed, allowed))
        except (OSError, ValueError) as error:
            raise _CannotEnforceError(key, f"the system refuses it: {error}") from error


def _restrict(launch: "dict[str, Any]") -> None:
    if (user := launch.get("user")) is not None:
        _set_user(user)
    if launch.get("user_namespace"):
        _enter_user_namespace()
    if launch.get("no_new_privs"):
        _drop_privileges()
    if (files := launch.get("files")) is not None:
        _restrict_files(**files)
    if (families := launch.get("refused_sockets")) is not None:
        _refuse_sockets(families)
    if sys.platform == "linux":
        # Changes of the user clear what the gateway set when it started this process.
        _prctl("user", "the kernel refuses a signal", _PR_SET_PDEATHSIG, int(signal.SIGTERM))
        if os.getppid() != launch["parent"]:
            os._exit(EXIT_CODE)  # the gateway died before that
    _set_limits(launch["limits"])


# The launcher process


def _read_launch(connection: int) -> "dict[str, Any]":
    parts: list[bytes] = []
    size = 0
    while (part := os.read(connection, 65536)) and size <= _MAX_LAUNCH_BYTES:
        parts.append(part)
        size += len(part)
    return json.loads(b"".join(parts))


def main(connection: int) -> "NoReturn":
    """Run the launcher process; `connection` is the socket to the gateway."""
    os.set_inheritable(connection, False)
    try:
        launch = _read_launch(connection)
        # Python ignores these two; the program would inherit that.
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        _restrict(launch)
        argv = launch["argv"]
        if launch.get("filters_bubblewrap"):
            argv = _with_filter(argv)
        os.execvpe(argv[0], argv, launch["env"])  # noqa: S606
    except _CannotEnforceError as error:
        report = {"reason": f"sandbox.{error.key}: {error.reason}"}
    except OSError as error:
        report = {"errno": error.errno}
    except Exception as error:
        report = {"reason": f"the sandbox failed: {type(error).__name__}: {error}"}
    with suppress(OSError):
        os.write(connection, json.dumps(report).encode())
    os._exit(EXIT_CODE)


if __name__ == "__main__":
    main(int(sys.argv[1]))
