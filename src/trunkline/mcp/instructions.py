"""Instructions: what servers tell models about their use, merged into one text for a client.

    the gateway's own text
    ## Title of a server     the prefix of its tools, and its text, for each server

Servers may write what they like, so each text is limited, and its headings are moved below the
title: a server cannot begin the section of another one.
"""

import re
from collections.abc import Iterable
from typing import NamedTuple

MAX_SERVER_CHARS = 8_000
"""How many characters of one server's instructions are kept."""

MAX_TOTAL_CHARS = 32_000
"""How many characters the sections of all servers have; those that do not fit are left out."""

_TOP_HEADING = re.compile(r"^( {0,3})(#{1,2})(?=\s)", re.MULTILINE)


class ServerInstructions(NamedTuple):
    """The instructions of one server."""

    title: str
    prefix: str
    """What the names of its tools begin with at the gateway."""
    text: str


def clip_instructions(text: str | None) -> str | None:
    """Return the text of a server, cut to the limit; None if there is none."""
    text = (text or "").strip()
    if len(text) > MAX_SERVER_CHARS:
        text = text[: MAX_SERVER_CHARS - 1] + "…"
    return text or None


def merge_instructions(own: str | None, servers: Iterable[ServerInstructions]) -> str | None:
    """Return the gateway's own instructions and a section for each server, or None."""
    sections = [] if own is None else [own]
    left, omitted = MAX_TOTAL_CHARS, 0
    for server in servers:
        section = _write_section(server)
        if len(section) > left:
            omitted += 1
            continue
        left -= len(section)
        sections.append(section)
    if omitted:
        sections.append(f"(The instructions of {omitted} more servers are left out.)")
    return "\n\n".join(sections) or own


def _write_section(server: ServerInstructions) -> str:
    note = f'The names of its tools begin with "{server.prefix}" here.\n\n' if server.prefix else ""
    text = _TOP_HEADING.sub(r"\1##\2", server.text)
    return f"## {server.title}\n\n{note}{text}"
