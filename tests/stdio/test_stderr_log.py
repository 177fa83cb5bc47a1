"""`StderrLog`: the last lines of a server, numbered across its restarts."""

from trunkline.stdio.stderr_log import MAX_LOG_CHARS, StderrLine, StderrLog


def test_lines_are_kept_across_processes_with_their_times() -> None:
    times = iter((1.0, 2.0))
    log = StderrLog(clock=lambda: next(times))
    log.add(7, "a")
    log.add(8, "b")
    assert log.read() == [StderrLine(1.0, 7, "a"), StderrLine(2.0, 8, "b")]
    assert log.read(1) == [StderrLine(2.0, 8, "b")]
    assert log.read(log.total) == log.read(99) == []


def test_the_number_and_the_size_of_lines_are_limited() -> None:
    log = StderrLog(max_lines=2)
    for text in "abc":
        log.add(1, text)
    assert [line.text for line in log.read()] == ["b", "c"]
    # A reader that has missed lines gets those that are left.
    assert [line.text for line in log.read(0)] == ["b", "c"]
    log.add(1, "x" * MAX_LOG_CHARS)
    assert [len(line.text) for line in log.read()] == [MAX_LOG_CHARS]
    assert log.total == 4
