"""What is shown: tables, and the text of others, which moves nothing."""

import ast
import io
import json
from pathlib import Path

import pytest

from trunkline.cli import screen
from trunkline.visible import visible_lines


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def look(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Look at what is printed on a terminal from now on."""
    made = Terminal()
    monkeypatch.setattr("sys.stdout", made)
    monkeypatch.setattr("sys.stderr", made)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "60")
    return made


def test_control_characters_are_shown_and_not_sent(capsys: pytest.CaptureFixture[str]) -> None:
    screen.say("a\x1b[31mb\x07\r\n\tc\u202e\x9b")
    assert capsys.readouterr().err == "a\\x1b[31mb\\x07\n\tc\\u202e\\x9b\n"


def test_what_cannot_be_encoded_does_not_stop_it(capsys: pytest.CaptureFixture[str]) -> None:
    screen.say("a\ud800b")
    assert capsys.readouterr().err == "a\\ud800b\n"


def test_the_first_line_is_the_first_that_says_something() -> None:
    assert screen.first_line("\n \n  one \ntwo") == "one"
    assert screen.first_line(" \n") == ""


def test_a_line_stays_one_whoever_wrote_it(capsys: pytest.CaptureFixture[str]) -> None:
    screen.print_lines("a\nok\x1b[2J", "b")
    assert capsys.readouterr().out == "a\\x0aok\\x1b[2J\nb\n"


def test_json_moves_no_cursor_and_says_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    screen.print_json({"a": "\x9b2J\u202e\x1b"})
    printed = capsys.readouterr().out
    assert json.loads(printed) == {"a": "\x9b2J\u202e\x1b"}
    assert visible_lines(printed) == printed


def test_lines_of_json_are_changed_for_a_terminal_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = ["\x9b2J", "ü"]
    assert screen.json_lines(rows) == '"\x9b2J"\n"ü"\n'
    look(monkeypatch)
    assert screen.json_lines(rows) == '"\\u009b2J"\n"ü"\n'


MODULES = sorted(Path(screen.__file__).parent.glob("*.py"))
WITH_PRINT = {
    "__init__",
    "call",
    "check",
    "client_config",
    "import_files",
    "program",
    "screen",
    "tail",
}
"""Those that print a result to the byte, or make it visible themselves."""


@pytest.mark.parametrize("path", MODULES, ids=[path.stem for path in MODULES])
def test_commands_print_by_way_of_the_screen(path: Path) -> None:
    names = [
        node.func.id
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    ]
    assert "print" not in names or path.stem in WITH_PRINT


def test_failing_says_why_on_stderr_and_ends(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        screen.fail(2, "one", "two")
    assert caught.value.code == 2
    assert capsys.readouterr() == ("", "trunkline: one\ntrunkline: two\n")


def test_a_table_in_a_file_is_plain_and_has_no_trailing_space(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = [("fs", "3", "x\x1b[1m"), ("longer", "12", "")]
    screen.print_table(("server", "tools", "error"), rows, ("tools",))
    assert capsys.readouterr().out == (
        "server  tools  error\nfs          3  x\\x1b[1m\nlonger     12\n"
    )


def test_a_table_on_a_terminal_has_colours_and_no_markup_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = look(monkeypatch)
    screen.print_table(("server", "state", "error"), [("fs", "ready", "[bold]x[/bold]")])
    shown = terminal.getvalue()
    assert "\x1b[32mready\x1b[0m" in shown
    assert "[bold]x[/bold]" in shown


def test_no_color_is_heeded(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = look(monkeypatch)
    monkeypatch.setenv("NO_COLOR", "1")
    screen.print_table(("server", "state", "error"), [("fs", "ready", "")])
    assert "ready" in terminal.getvalue()
    assert "\x1b[32m" not in terminal.getvalue()


def test_a_last_column_without_room_goes_below(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = look(monkeypatch)
    screen.print_table(("server", "state", "error"), [("x" * 30, "ready", "why " * 10)])
    lines = terminal.getvalue().splitlines()
    assert "error" not in lines[0]
    assert lines[-2].startswith("x" * 30 + ": why why")


def test_a_heading_is_bold_on_a_terminal_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = look(monkeypatch)
    screen.print_heading("[a] title")
    assert terminal.getvalue() == "\x1b[1m[a] title\x1b[0m\n"
    monkeypatch.undo()
    screen.print_heading("[a] title")
    assert capsys.readouterr().out == "[a] title\n"


def test_progress_moves_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = look(monkeypatch)
    with screen.progress("[starting]") as show:
        show("[still] starting")
    assert "[still] starting" in terminal.getvalue()


def test_progress_is_silent_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    with screen.progress("starting") as show:
        show("still starting")
    assert capsys.readouterr() == ("", "")
