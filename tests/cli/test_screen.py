"""What is shown: tables, and the text of others, which moves nothing."""

import io

import pytest

from trunkline.cli import screen


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
