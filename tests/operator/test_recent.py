"""The last of what has happened, in plain words, without what was asked."""

from tests.calls import ended
from trunkline.gateway.events import BackendMoved, Event, Switched
from trunkline.operator.recent import LONGEST, Recent


def said(event: Event) -> str:
    recent = Recent(today=lambda: 1.0)
    recent.note(event)
    (line,) = recent.last(5)
    return line


def test_of_a_call_it_says_when_who_what_and_how_it_ended_and_nothing_of_its_arguments() -> None:
    assert said(ended(at=0.0)) == "1970-01-01T00:00:00Z ann called fs__read: success in 12 ms"


def test_of_all_else_it_says_what_happened_when_it_was_told() -> None:
    stopped = Switched("tool", "a", True, "anna")
    assert said(stopped) == "1970-01-01T00:00:01Z tool a is stopped by anna"


def test_so_many_are_kept_and_the_last_are_shown_oldest_first() -> None:
    recent = Recent(most=3)
    for number in range(5):
        recent.note(ended(name=f"t{number}"))
    assert len(recent) == 3
    assert [line.split()[3] for line in recent.last(2)] == ["t3:", "t4:"]
    assert len(recent.last(100)) == 3


def test_a_line_is_one_line_of_bounded_length_whatever_a_client_says() -> None:
    line = said(ended(name="a\n\x1b[2Jb" + "x" * 10_000))
    assert "a\\x0a\\x1b[2Jb" in line
    assert line.isprintable()
    assert len(line) < 2 * LONGEST
    assert len(said(BackendMoved("s", "failed", "y" * 10_000, None))) < 2 * LONGEST


def test_secrets_are_taken_out() -> None:
    recent = Recent(lambda text: text.replace("hunter22", "…"))
    recent.note(BackendMoved("fs", "failed", "bad token hunter22", None))
    assert recent.last(1)[0].endswith("bad token …")


def test_a_password_in_an_address_is_not_kept() -> None:
    assert "of db://[redacted]@x: " in said(ended(method="resources/read", name="db://u:p@x"))
    long = said(ended(method="resources/read", name=f"db://u:{'hunter22' * 100}@x"))
    assert "hunter22" not in long


def test_no_half_of_a_secret_is_left_where_a_line_is_cut() -> None:
    recent = Recent(lambda text: text.replace("hunter22", "…"))
    long = "y" * (LONGEST - len("server fs is failed: ") - 4)
    recent.note(BackendMoved("fs", "failed", f"{long}hunter22", None))
    assert "hunt" not in recent.last(1)[0]
