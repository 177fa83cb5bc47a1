"""Userinfo: addresses in the texts of others, without who asks there.

    https://ann:secret@host/x ──without_user──> https://[redacted]@host/x

Refuses to be exact: what may be a password is taken for one, whatever stands in it.
"""

import re

HIDDEN = "[redacted]"
"""What stands where something is not shown."""

_PASSWORD = r"(?![^/?#:]*:\d{1,5}[/?#])[^/?#:]*:"  # noqa: S105  what is no port is one
_WITH_PASSWORD = re.compile(rf"://(?:{_PASSWORD}|[^/?#:@]{{20,}}@)")
_WITH_NAME = re.compile(rf"://(?:{_PASSWORD}|[^/?#:@]+@)")


def without_user(address: str, any_name: bool = False) -> str:
    """Return an address without all that stands before its last `@`, if a password is there.

    Or a name that is as long as a token is; with `any_name`, any.
    """
    end = address.rfind("@")
    user = (_WITH_NAME if any_name else _WITH_PASSWORD).search(address, 0, end + 1)
    return address if user is None else f"{address[: user.start()]}://{HIDDEN}{address[end:]}"


def beginning(text: str, longest: int) -> str:
    """Return what is looked at of a text: who is named last may have a password after the cut."""
    return text if len(text) <= longest else f"{text[:longest]}@"
