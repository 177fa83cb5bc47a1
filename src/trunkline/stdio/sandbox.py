"""Sandboxes: the restrictions of a child process, and how this machine enforces them.

    SandboxSettings ── plan_sandbox ──> SandboxPlan ──> the launcher ──> bwrap ──> the server
                            └── SandboxError: a setting that cannot be enforced here

Files and network are restricted by bubblewrap if it works here, else by Landlock and seccomp. User,
privileges and limits need no tool. `stdio.sandbox_launcher` sets the restrictions that are planned
here.

Invariants:
1. Every setting is enforced, or the server does not start.
2. With `read_only` or `writable`, all other files are hidden, except what programs need to run.
"""

import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple

from msgspec import Meta, Struct

from trunkline.stdio.sandbox_launcher import MIN_LANDLOCK_ABI, can_filter_sockets, landlock_abi

MIB = 1024 * 1024

# What programs need to run. Neither /etc nor /opt as a whole: a gateway may keep its secrets there.
_SYSTEM_FOLDERS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store")
_SYSTEM_FILES = tuple(
    f"/etc/{name}"
    for name in (
        *("alternatives", "ca-certificates", "crypto-policies", "fonts", "gai.conf", "group"),
        *("host.conf", "hosts", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "locale.conf"),
        *("localtime", "mime.types", "nsswitch.conf", "os-release", "passwd", "pki/ca-trust"),
        *("pki/tls/cert.pem", "pki/tls/certs", "pki/tls/openssl.cnf", "protocols", "resolv.conf"),
        *("services", "ssl/cert.pem", "ssl/certs", "ssl/openssl.cnf", "timezone"),
    )
)
_DEVICES = tuple(f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom", "tty"))

_PRIVATE_FOLDERS = ("/tmp", "/dev", "/proc")  # noqa: S108  nothing is written there

_TMPFS_BYTES = 256 * MIB
"""How much fits into /tmp, and into /dev/shm, of a sandbox without `memory_mib`."""

_PROBE_TIMEOUT = 5.0
"""How many seconds bubblewrap has to show that it works."""

_ENABLE_USER_NAMESPACES = "allow user namespaces (sysctl user.max_user_namespaces)"


_UserName = Annotated[str, Meta(pattern=r"^\S+$", extra={"expected": "a user, by name or number"})]


class SandboxSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The restrictions of a command; a key that is not set restricts nothing."""

    # The keys whose values are lists of paths relative to the configuration file
    PATH_KEYS: ClassVar[tuple[str, ...]] = ("read_only", "writable")

    user: Annotated[
        _UserName | None,
        Meta(
            description=(
                "The user that the command runs as; the gateway must be root. "
                "Default: that of the gateway."
            )
        ),
    ] = None
    no_new_privs: Annotated[
        bool, Meta(description="Whether setuid programs such as sudo have no effect.")
    ] = True
    read_only: Annotated[
        tuple[str, ...] | None,
        Meta(
            description="Files and folders to read; all others are hidden. Default: no restriction."
        ),
    ] = None
    writable: Annotated[
        tuple[str, ...] | None,
        Meta(
            description=(
                "Files and folders to read and write; all others are hidden. "
                "Default: no restriction."
            )
        ),
    ] = None
    network: Annotated[bool, Meta(description="Whether the command may use the network.")] = True
    memory_mib: Annotated[
        Annotated[int, Meta(ge=32, le=2**24)] | None,
        Meta(description="Private memory of each process, in MiB. Default: no limit."),
    ] = None
    cpu_seconds: Annotated[
        Annotated[int, Meta(ge=1, le=2**31)] | None,
        Meta(description="Seconds of CPU time after which a process is killed. Default: no limit."),
    ] = None
    processes: Annotated[
        Annotated[int, Meta(ge=1, le=2**20)] | None,
        Meta(
            description=(
                "Processes and threads at the same time; of `user`, if that is set. "
                "Default: no limit."
            )
        ),
    ] = None

    @property
    def restricts_files(self) -> bool:
        """Whether files are hidden."""
        return self.read_only is not None or self.writable is not None

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of both lists."""
        return (*(self.read_only or ()), *(self.writable or ()))

    def default_folder(self, folder: Path | None) -> Path | None:
        """Return the folder to run in when none is configured: `folder`, or / if that is hidden.

        It is hidden if the sandbox does not show it, or if its user cannot reach it.
        """
        path = os.path.abspath(folder or ".")  # noqa: PTH100  what it is called
        return folder if self.shows(path) and _may_enter(self.user, path) else Path("/")

    def shows(self, path: str) -> bool:
        """Whether the command can see a path, and what a symbolic link leads to."""
        if not self.restricts_files or path == "/":
            return True
        roots = {*_SYSTEM_FOLDERS, *self.paths, *map(os.path.realpath, self.paths)}
        # Not Path.resolve: it would follow the link, whose own place counts too.
        both = (os.path.abspath(path), os.path.realpath(path))  # noqa: PTH100
        return all(any(_shows(root, each) for root in roots) for each in both)


class SandboxError(Exception):
    """A setting that this machine cannot enforce; `fix` says what may help."""

    def __init__(self, key: str, reason: str, fix: str) -> None:
        super().__init__(f"sandbox.{key}: {reason}; {fix}")
        self.reason, self.fix = f"sandbox.{key}: {reason}", fix


class SandboxPlan(Struct, frozen=True, kw_only=True):
    """How one program is started: what the launcher gets, and a description for people."""

    launch: dict[str, Any]
    description: str


class _User(Struct, frozen=True):
    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str

    @property
    def all_groups(self) -> tuple[int, ...]:
        """The primary group, and all others."""
        return (self.gid, *self.groups)


def plan_sandbox(
    settings: SandboxSettings,
    argv: list[str],
    inherited: Mapping[str, str],
    own: Mapping[str, str],
    cwd: str,
) -> SandboxPlan:
    """Decide how to enforce all settings; raises SandboxError. It may block for some seconds.

    The program gets the variables `inherited`, as far as they fit the sandbox, and all of `own`.
    """
    cwd = os.path.abspath(cwd)  # noqa: PTH100  what it is called, not what it links to
    user = None if settings.user is None else _find_user(settings.user)
    _check_limits(settings, user)
    env = {**_fit_environment(inherited, settings, user), **own}
    launch: dict[str, Any] = {"argv": argv, "env": env, "limits": _limits(settings)}
    mechanism = _choose_mechanism(settings, user)
    if settings.restricts_files:
        _check_paths(settings, argv[0], env.get("PATH"), cwd)
    if mechanism.is_bubblewrap:
        launch["argv"] = _bubblewrap_command(settings, argv, cwd)
        launch["filters_bubblewrap"] = not settings.network and can_filter_sockets()
        if "processes" in launch["limits"]:
            launch["limits"]["processes"] += 2  # bwrap itself, and process 1 of the sandbox
    else:
        launch["no_new_privs"] = settings.no_new_privs
        if settings.restricts_files:
            launch["files"] = _landlock_paths(settings)
            launch["refused_sockets"] = "unix"
        if not settings.network:
            launch["refused_sockets"] = "all"
    if user is not None:
        launch["user"] = {"uid": user.uid, "gid": user.gid, "groups": user.groups}
    launch["user_namespace"] = settings.processes is not None and user is None
    launch["parent"] = os.getpid()
    description = _describe(settings, mechanism)
    return SandboxPlan(launch=launch, description=description)


def _find_user(name: str) -> _User | None:
    """Return the user to change to, None if the gateway runs as that user; raises SandboxError."""
    try:
        entry = pwd.getpwuid(int(name)) if name.isdecimal() else pwd.getpwnam(name)
    except (KeyError, OverflowError):
        if not name.isdecimal():
            reason, fix = f"there is no user {name!r}", "create the user, or set another one"
            raise SandboxError("user", reason, fix) from None
        user = _User(name, int(name), int(name), (), "/")
    else:
        groups = tuple(os.getgrouplist(entry.pw_name, entry.pw_gid))
        user = _User(entry.pw_name, entry.pw_uid, entry.pw_gid, groups, entry.pw_dir)
    if os.geteuid() not in {0, user.uid}:
        reason = f"only root can start a program as user {user.name!r}"
        raise SandboxError("user", reason, "run the gateway as root, or remove the setting")
    return None if os.geteuid() == user.uid else user


def _may_enter(name: str | None, path: str) -> bool:
    """Return whether a user can reach a folder by its path, as far as modes tell."""
    try:
        user = None if name is None else _find_user(name)
    except SandboxError:
        return True  # the start of the program gives the reason
    if user is None or user.uid == 0:
        return True

    def allows(folder: Path) -> bool:
        try:
            found = folder.stat()
        except OSError:
            return False
        shift = 6 if found.st_uid == user.uid else 3 if found.st_gid in user.all_groups else 0
        return bool(found.st_mode >> shift & 1)

    return all(map(allows, (Path(path), *Path(path).parents)))


def _check_limits(settings: SandboxSettings, user: _User | None) -> None:
    """Raise SandboxError for limits that do not hold here."""
    linux_only = {
        "no_new_privs": settings.no_new_privs,
        "memory_mib": settings.memory_mib is not None,
        "processes": settings.processes is not None and user is None,
    }
    for key in (key for key, is_set in linux_only.items() if is_set):
        if sys.platform != "linux":
            fix = f"remove the setting{' (write false)' if key == 'no_new_privs' else ''}"
            raise SandboxError(key, "it can be enforced on Linux only", fix)
    if settings.processes is not None and (os.geteuid() if user is None else user.uid) == 0:
        fix = 'set user = "…" to run it as another user, or remove the setting'
        raise SandboxError("processes", "the kernel does not limit the processes of root", fix)


def _limits(settings: SandboxSettings) -> dict[str, int]:
    limits = {
        "memory_mib": None if settings.memory_mib is None else settings.memory_mib * MIB,
        "cpu_seconds": settings.cpu_seconds,
        "processes": settings.processes,
    }
    return {key: value for key, value in limits.items() if value is not None}


def _fit_environment(
    inherited: Mapping[str, str], settings: SandboxSettings, user: _User | None
) -> dict[str, str]:
    env = dict(inherited)
    if settings.restricts_files:
        env.pop("TMPDIR", None)  # hidden; bubblewrap has a /tmp of its own
    if user is not None:
        env |= {"HOME": user.home, "USER": user.name, "LOGNAME": user.name}
    return env


# Mechanisms

_working: set[tuple[str, int]] = set()
"""Which bubblewrap works for which user. A failure is not kept, since it may be repaired."""


class _Mechanism(NamedTuple):
    """The tools that restrict files and network; None without such a restriction."""

    files: str | None = None
    network: str | None = None

    @property
    def is_bubblewrap(self) -> bool:
        return "bubblewrap" in self


def _choose_mechanism(settings: SandboxSettings, user: _User | None) -> _Mechanism:
    """Return the tools to use; raises SandboxError."""
    if not settings.restricts_files and settings.network:
        return _Mechanism()
    if (defect := _bubblewrap_defect(user)) is None:
        return _choose(settings, "bubblewrap", "bubblewrap")
    fix = f"install bubblewrap, {_ENABLE_USER_NAMESPACES}"
    files_key = "writable" if settings.read_only is None else "read_only"
    if settings.restricts_files and landlock_abi() < MIN_LANDLOCK_ABI:
        reason = f"{defect}, and the kernel has no Landlock of version {MIN_LANDLOCK_ABI}"
        fix = f"{fix}, use Linux 6.2 or later, or remove the setting"
        raise SandboxError(files_key, reason, fix)
    if not can_filter_sockets():
        key = files_key if settings.network else "network"
        reason = f"{defect}, and seccomp filters are known for Linux on x86_64 and arm64 only"
        raise SandboxError(key, reason, f"{fix}, or remove the setting")
    for path in settings.read_only or ():
        if any(_is_below(path, each) for each in settings.writable or ()):
            reason = f"{path!r} is in a writable folder; {defect}, and Landlock cannot do that"
            raise SandboxError("read_only", reason, f"{fix}, or remove the path")
    return _choose(settings, "Landlock", "seccomp")


def _choose(settings: SandboxSettings, files: str, network: str) -> _Mechanism:
    return _Mechanism(
        files if settings.restricts_files else None, None if settings.network else network
    )


def find_bubblewrap() -> str | None:
    """Return the path of bubblewrap, None if it is not installed."""
    return shutil.which("bwrap")


def _bubblewrap_defect(user: _User | None) -> str | None:
    """Return why bubblewrap cannot be used here, None if it works."""
    program = find_bubblewrap()
    if program is None:
        return "bubblewrap is not installed"
    key = (program, os.geteuid() if user is None else user.uid)
    if key in _working:
        return None
    command = [program, *_NAMESPACES, "--unshare-net", "--ro-bind", "/", "/", *_OWN_FOLDERS]
    command += ["--size", str(MIB), "--tmpfs", "/tmp", "--", "/bin/sh", "-c", "echo works"]  # noqa: S108
    try:
        done = subprocess.run(  # noqa: S603  found on our own PATH
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            cwd="/",
            timeout=_PROBE_TIMEOUT,
            check=False,
            user=user and user.uid,
            group=user and user.gid,
            extra_groups=user and user.groups,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"bubblewrap does not work here ({error})"
    # Not the exit code: Python takes it for 0 if the gateway reaps the process as an adopted one.
    if done.stdout == b"works\n":
        _working.add(key)
        return None
    lines = done.stderr.decode(errors="replace").strip().splitlines() or ["no reason given"]
    return f"bubblewrap does not work here ({lines[-1][:200]})"


_NAMESPACES = (
    *("--die-with-parent", "--unshare-pid", "--unshare-ipc", "--unshare-uts"),
    *("--cap-drop", "ALL"),
)
_OWN_FOLDERS = ("--proc", "/proc", "--dev", "/dev")


def _bubblewrap_command(settings: SandboxSettings, argv: list[str], cwd: str) -> list[str]:
    command = [find_bubblewrap() or "bwrap", *_NAMESPACES]
    if not settings.network:
        command.append("--unshare-net")
    if settings.restricts_files:
        command += _bubblewrap_files(settings)
    else:
        command += ["--dev-bind", "/", "/", "--proc", "/proc"]
    return [*command, "--chdir", cwd, "--", *argv]


def _bubblewrap_files(settings: SandboxSettings) -> list[str]:
    options = dict.fromkeys(settings.read_only or (), "--ro-bind")
    options |= dict.fromkeys(settings.writable or (), "--bind")
    mounts: list[str] = []
    if (whole := options.pop("/", None)) is not None:
        mounts += [whole, "/", "/"]
    else:
        for folder in _SYSTEM_FOLDERS:
            if Path(folder).is_symlink():
                mounts += ["--symlink", str(Path(folder).readlink()), folder]
            else:
                mounts += ["--ro-bind-try", folder, folder]
        for file in _SYSTEM_FILES:
            mounts += ["--ro-bind-try", file, file]
    size = str(_TMPFS_BYTES if settings.memory_mib is None else settings.memory_mib * MIB)
    mounts += [*_OWN_FOLDERS, "--size", size, "--tmpfs", "/tmp"]  # noqa: S108  a private one
    mounts += ["--size", size, "--tmpfs", "/dev/shm", "--remount-ro", "/dev"]  # noqa: S108
    # Outer folders first, so that a path within another one has its own access.
    for path, option in sorted(options.items()):
        mounts += [option, path, path]
    return mounts if whole == "--bind" else [*mounts, "--remount-ro", "/"]


def _landlock_paths(settings: SandboxSettings) -> dict[str, list[str]]:
    system = [*_SYSTEM_FOLDERS, *_SYSTEM_FILES, "/proc"]
    return {
        "read_only": [*system, *(settings.read_only or ())],
        "writable": [*_DEVICES, *(settings.writable or ())],
    }


def _check_paths(settings: SandboxSettings, argv0: str, path: str | None, cwd: str) -> None:
    """Raise SandboxError for paths that do not exist, and for a hidden program or folder."""
    for key in SandboxSettings.PATH_KEYS:
        for each in getattr(settings, key) or ():
            if not os.path.exists(each):  # noqa: PTH110  Path.exists raises for some paths
                raise SandboxError(key, f"there is no {each!r}", "create it, or remove it here")
    if not settings.shows(cwd):
        fix = f"add {cwd!r} to sandbox.read_only or sandbox.writable, or set another cwd"
        raise SandboxError("read_only", f"the sandbox hides the working directory {cwd!r}", fix)
    found = shutil.which(str(Path(cwd) / argv0) if "/" in argv0 else argv0, path=path)
    if found is not None and not settings.shows(found):
        real = os.path.realpath(found)
        folders = dict.fromkeys(str(Path(each).parent) for each in (found, real))
        missing = [each for each in folders if not settings.shows(each)] or list(folders)
        fix = f"add {' and '.join(map(repr, missing))} to sandbox.read_only"
        raise SandboxError("read_only", f"the sandbox hides the program {found!r}", fix)


def _shows(root: str, path: str) -> bool:
    # Those of bubblewrap are private, even if / is listed.
    is_private = any(path != each and _is_below(path, each) for each in _PRIVATE_FOLDERS)
    return _is_below(path, root) and not (root == "/" and is_private)


def _is_below(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip("/") + "/")


def _describe(settings: SandboxSettings, mechanism: _Mechanism) -> str:
    is_bubblewrap = mechanism.is_bubblewrap
    parts = (
        (mechanism.files, f"files by {mechanism.files}"),
        (mechanism.network, f"no network by {mechanism.network}"),
        (is_bubblewrap, "own process ids by bubblewrap"),
        (settings.user, f"user {settings.user}"),
        (settings.no_new_privs or is_bubblewrap, "no new privileges"),
        (settings.memory_mib, f"{settings.memory_mib} MiB per process"),
        (settings.cpu_seconds, f"{settings.cpu_seconds} s of CPU time per process"),
        (settings.processes, f"{settings.processes} processes"),
    )
    return ", ".join(text for holds, text in parts if holds)
