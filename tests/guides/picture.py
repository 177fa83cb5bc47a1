"""The picture of a terminal on the start page and in README: records commands, and draws them.

    COMMANDS ──record, with real servers──> Recorded ──draw──> docs/terminal.svg ──read──> tests

`make picture` records it anew. The picture is text in an SVG, so it can be selected and searched,
refers to nothing else, and follows the light or dark theme of the reader.
"""

import re
import sys
from collections.abc import Sequence
from html import escape, unescape
from typing import NamedTuple

from tests.guides.reader import Reader, matches

ADD = "trunkline add time -- uvx mcp-server-time"
CALL = "trunkline call time__get_current_time --arg timezone=UTC"
QUERY = "trunkline audit query"
COMMANDS = {
    ADD: 0,
    CALL: 0,
    "trunkline kill tool time__convert_time": 0,
    "trunkline call time__convert_time": 1,
    QUERY: 0,
}
"""The commands of the picture, with their exit codes."""

RECORDS = 2
"""How many calls `audit query` lists."""

MAX_COLUMNS = 92
_AT_TERMINAL = (
    f"COLUMNS={MAX_COLUMNS} {sys.executable} -c 'import pty, sys; pty.spawn(sys.argv[1:])' "
)
_CONTROL_CODES = re.compile(r"\x1b\[[?\d;]*[A-Za-z]|\r")

_CHAR, _LINE, _MARGIN = 7.8, 19, 18
_HEAD = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height}" width="{width:g}" \
role="img" aria-labelledby="title">
<title id="title">Add a server, call a tool, disable one, list the calls</title>
<style>
svg {{ color-scheme: light dark }}
rect {{ fill: #f6f8fa; stroke: #d0d7de }}
text {{ font: 13px ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: #1f2328; \
white-space: pre }}
.command {{ fill: #0550ae; font-weight: 600 }}
@media (prefers-color-scheme: dark) {{
rect {{ fill: #0d1117; stroke: #3d444d }}
text {{ fill: #e6edf3 }}
.command {{ fill: #79c0ff }}
}}
</style>
<rect x="0.5" y="0.5" width="{inner:g}" height="{inner_height}" rx="8"/>
"""


class Recorded(NamedTuple):
    """A command and what it printed."""

    command: str
    lines: tuple[str, ...]


def shows(shown: Recorded, printed: Recorded) -> bool:
    """Return whether a picture shows what a command printed, at another time."""
    return shown.command == printed.command and matches(_text(shown), _text(printed))


def _text(recorded: Recorded) -> str:
    text = "".join(f"{line}\n" for line in recorded.lines)
    # The times of the server and of the records differ, and with them the widths of columns.
    text = re.sub("─+", "─", text)
    time = r"(\d{4}-\d\d-\d\dT)?\d\d:\d\d:\d\d(\+00:00)?"
    return re.sub(rf"{time}|\b[A-Z][a-z]+day\b", "…", text)


def record(reader: Reader) -> list[Recorded]:
    """Run the commands; a gateway serves from the second one on."""
    found: list[Recorded] = []
    for command, status in COMMANDS.items():
        printed = reader.run(command)
        if command == QUERY:
            while printed.text.count("\n") <= RECORDS:
                printed = reader.run(command)  # records are written up to 0.1 s after the call
            printed = reader.run(_AT_TERMINAL + command)  # it shows short times there
        assert printed.status == status, f"{command}\n{printed.text}"
        text = _CONTROL_CODES.sub("", printed.text)
        found.append(Recorded(command, tuple(line.rstrip() for line in text.splitlines())))
        if command == ADD:
            reader.serve()
    return found


def draw(session: Sequence[Recorded]) -> str:
    """Return the SVG."""
    lines = [
        (shown, is_command)
        for each in session
        for shown, is_command in [(f"$ {each.command}", True), *((x, False) for x in each.lines)]
    ]
    longest = max(len(shown) for shown, _ in lines)
    assert longest <= MAX_COLUMNS, f"{longest} columns do not fit"
    width, height = longest * _CHAR + 2 * _MARGIN, len(lines) * _LINE + 2 * _MARGIN
    parts = [_HEAD.format(width=width, height=height, inner=width - 1, inner_height=height - 1)]
    for number, (shown, is_command) in enumerate(lines):
        kind = ' class="command"' if is_command else ""
        # With its length, a line is as wide in every font, so that columns are aligned.
        size = f'textLength="{len(shown) * _CHAR:g}" lengthAdjust="spacingAndGlyphs"'
        place = f'x="{_MARGIN}" y="{_MARGIN + 14 + number * _LINE}"'
        parts.append(f'<text {place} {size} xml:space="preserve"{kind}>{escape(shown)}</text>\n')
    return "".join((*parts, "</svg>\n"))


def read(svg: str) -> list[Recorded]:
    """Return what a picture shows."""
    found: list[Recorded] = []
    for kind, text in re.findall(r'<text [^>]*preserve"( class="command")?>(.*)</text>', svg):
        shown = unescape(text)
        if kind:
            found.append(Recorded(shown.removeprefix("$ "), ()))
        else:
            last = found.pop()
            found.append(Recorded(last.command, (*last.lines, shown)))
    return found
