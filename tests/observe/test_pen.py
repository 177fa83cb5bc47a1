"""A reader that does not read stops nobody."""

import os
import threading
from collections.abc import Generator

import pytest

from trunkline.observe.pen import Pen


@pytest.fixture
def pipe() -> Generator[tuple[int, int]]:
    near, far = os.pipe()
    yield near, far
    for end in (near, far):
        try:
            os.close(end)
        except OSError:
            continue


def lost(count: int) -> bytes:
    return b"%d lost\n" % count


def test_lines_are_written_in_order_and_the_end_waits_for_them(pipe: tuple[int, int]) -> None:
    near, far = pipe
    pen = Pen(far, lost)
    for number in range(200):
        pen.write(b"%d\n" % number)
    pen.close(10)
    pen.close(10)
    os.close(far)
    with os.fdopen(os.dup(near), "rb") as file:
        assert file.read() == b"".join(b"%d\n" % number for number in range(200))
    pen.write(b"too late\n")
    assert pen.dropped == 1


@pytest.mark.parametrize("blocking", [True, False])
def test_who_does_not_read_misses_lines_and_is_told_how_many(
    pipe: tuple[int, int], blocking: bool
) -> None:
    near, far = pipe
    os.set_blocking(far, blocking)
    pen = Pen(far, lost, most=10)
    line = b"x" * 9999 + b"\n"
    count = 1000
    for _ in range(count):
        pen.write(line)
    assert pen.dropped > count // 2
    dropped = pen.dropped
    found: list[bytes] = []

    def read() -> None:
        with os.fdopen(os.dup(near), "rb") as file:
            found.append(file.read())

    reader = threading.Thread(target=read)
    reader.start()
    pen.close(10)
    os.close(far)
    reader.join(10)
    lines = found[0].splitlines()
    assert lines.count(b"x" * 9999) == count - dropped
    told = [int(each.split()[0]) for each in lines if each.endswith(b"lost")]
    assert sum(told) == dropped


def test_a_reader_that_is_gone_is_no_reason_to_fail(pipe: tuple[int, int]) -> None:
    near, far = pipe
    os.close(near)
    pen = Pen(far, lost)
    pen.write(b"a\n")
    pen.close(10)
    assert pen.dropped == 1
