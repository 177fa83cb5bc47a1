"""Runs a program as a service: without capabilities, and with an allow list of system calls.

    python system_call_filter.py USER NUMBERS PROGRAM ARGUMENTS...

The user 0 changes nothing. NUMBERS are the allowed calls of x86_64. All others fail with EPERM, as
with `SystemCallErrorNumber=EPERM`.
"""

import ctypes
import os
import struct
import sys

_SET_NO_NEW_PRIVS, _CAPBSET_DROP, _SET_SECCOMP, _FILTER = 38, 24, 22, 2
_ALLOW, _KILL, _REFUSE = 0x7FFF0000, 0x80000000, 0x00050001
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_X86_64 = 0xC000003E


def install(user: int, numbers: list[int]) -> None:
    """Restrict this process and its descendants."""
    libc = ctypes.CDLL(None, use_errno=True)
    for capability in range(64):
        libc.prctl(_CAPBSET_DROP, capability, 0, 0, 0)
    if user:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    libc.prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    code = [(_LOAD, 0, 0, 4), (_JUMP_IF_EQUAL, 1, 0, _X86_64), (_RETURN, 0, 0, _KILL)]
    code.append((_LOAD, 0, 0, 0))
    for number in numbers:
        code += [(_JUMP_IF_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ALLOW)]
    code.append((_RETURN, 0, 0, _REFUSE))
    data = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *each) for each in code))
    program = struct.pack("HxxxxxxP", len(code), ctypes.addressof(data))
    if libc.prctl(_SET_SECCOMP, _FILTER, ctypes.create_string_buffer(program), 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "seccomp")


if __name__ == "__main__":
    # Opened before, because the other user may not reach its folder.
    with open(sys.argv[3], "rb") as program:  # noqa: PTH123
        install(int(sys.argv[1]), [int(number) for number in sys.argv[2].split(",")])
        os.execve(program.fileno(), sys.argv[3:], os.environ)
