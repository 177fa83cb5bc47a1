"""What commands print: tables, and text with its control characters escaped."""

import ast
import io
import json
from pathlib import Path

import pytest

from trunkline.cli import output
from trunkline.printable import printable_lines


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def capture_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Return a fake terminal that captures everything printed from now on."""
    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "60")
    return terminal


def test_control_characters_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_message("a\x1b[31mb\x07\r\n\tc\u202e\x9b")
    assert capsys.readouterr().err == "a\\x1b[31mb\\x07\n\tc\\u202e\\x9b\n"


def test_text_that_cannot_be_encoded_is_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_message("a\ud800b")
    assert capsys.readouterr().err == "a\\ud800b\n"


def test_first_line_skips_blank_lines() -> None:
    assert output.first_line("\n \n  one \ntwo") == "one"
    assert output.first_line(" \n") == ""


def test_line_breaks_within_a_line_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_lines("a\nok\x1b[2J", "b")
    assert capsys.readouterr().out == "a\\x0aok\\x1b[2J\nb\n"


def test_json_output_escapes_control_characters_and_keeps_its_value(
    capsys: pytest.CaptureFixture[str],
) -> None:
    output.print_json({"a": "\x9b2J\u202e\x1b"})
    printed = capsys.readouterr().out
    assert json.loads(printed) == {"a": "\x9b2J\u202e\x1b"}
    assert printable_lines(printed) == printed


def test_json_lines_are_escaped_only_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = ["\x9b2J", "ü"]
    assert output.json_lines(rows) == '"\x9b2J"\n"ü"\n'
    capture_terminal(monkeypatch)
    assert output.json_lines(rows) == '"\\u009b2J"\n"ü"\n'


MODULES = sorted(Path(output.__file__).parent.glob("*.py"))
WITH_PRINT = {
    "__init__",
    "audit",
    "call",
    "check",
    "client_config",
    "import_files",
    "output",
    "program",
}
"""Modules that print an exact result, or escape control characters themselves."""


@pytest.mark.parametrize("path", MODULES, ids=[path.stem for path in MODULES])
def test_commands_print_through_the_output_module(path: Path) -> None:
    names = [
        node.func.id
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    ]
    assert "print" not in names or path.stem in WITH_PRINT


def test_fail_prints_the_reasons_on_stderr_and_exits(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as error:
        output.fail(2, "one", "two")
    assert error.value.code == 2
    assert capsys.readouterr() == ("", "trunkline: one\ntrunkline: two\n")


def test_a_table_in_a_file_is_plain_and_has_no_trailing_space(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = [("fs", "3", "x\x1b[1m"), ("longer", "12", "")]
    output.print_table(("server", "tools", "error"), rows, ("tools",))
    assert capsys.readouterr().out == (
        "server  tools  error\nfs          3  x\\x1b[1m\nlonger     12\n"
    )


def test_a_table_on_a_terminal_has_colours_and_shows_markup_as_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = capture_terminal(monkeypatch)
    output.print_table(("server", "state", "error"), [("fs", "ready", "[bold]x[/bold]")])
    shown = terminal.getvalue()
    assert "\x1b[32mready\x1b[0m" in shown
    assert "[bold]x[/bold]" in shown


def test_no_color_disables_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = capture_terminal(monkeypatch)
    monkeypatch.setenv("NO_COLOR", "1")
    output.print_table(("server", "state", "error"), [("fs", "ready", "")])
    assert "ready" in terminal.getvalue()
    assert "\x1b[32m" not in terminal.getvalue()


def test_a_last_column_that_does_not_fit_is_printed_below_the_table(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = capture_terminal(monkeypatch)
    output.print_table(("server", "state", "error"), [("x" * 30, "ready", "why " * 10)])
    lines = terminal.getvalue().splitlines()
    assert "error" not in lines[0]
    assert lines[-2].startswith("x" * 30 + ": why why")


def test_a_row_stays_on_one_line_if_its_last_column_may_be_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = capture_terminal(monkeypatch)
    monkeypatch.setenv("NO_COLOR", "1")
    rows = [("fs__read", "Reads a file. " * 10), ("y" * 50, "Writes a file.")]
    output.print_table(("tool", "description"), rows, one_line=True)
    _, _, first, second = (line.rstrip() for line in terminal.getvalue().splitlines())
    assert first.startswith("fs__read ")
    assert first.endswith("…")
    assert second == "y" * 50 + "  Writes …"
    assert max(map(len, (first, second))) <= 60


def test_a_heading_is_bold_on_a_terminal_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = capture_terminal(monkeypatch)
    output.print_heading("[a] title")
    assert terminal.getvalue() == "\x1b[1m[a] title\x1b[0m\n"
    monkeypatch.undo()
    output.print_heading("[a] title")
    assert capsys.readouterr().out == "[a] title\n"


def test_progress_is_shown_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = capture_terminal(monkeypatch)
    with output.progress("[starting]") as show:
        show("[still] starting")
    assert "[still] starting" in terminal.getvalue()


def test_progress_is_silent_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with output.progress("starting") as show:
        show("still starting")
    assert capsys.readouterr() == ("", "")
