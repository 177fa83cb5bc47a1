"""Every command of README, the start page and the guides works, in the order of the page."""

import re

import pytest

from tests.guides.manual import NOT_RUN, PAGES, REPLACED, ROOT, Given, NotRun, Run, follow
from tests.guides.reader import Reader, matches, matches_json, read_blocks, split_commands

FOLLOWED = ["README.md", "docs/index.md", "docs/start/*.md", "docs/guides/*.md"]


def follow_page(page: str, reader: Reader) -> None:
    """Follow a page from its first block to its last."""
    blocks = read_blocks(ROOT / page)
    steps = [step for step in PAGES[page] if not isinstance(step, Given)]
    listed = [f"{block.line}: {block.language}" for block in blocks]
    assert len(steps) == len(blocks), f"tests/guides/manual.py needs a step for each of {listed}"
    remaining = iter(blocks)
    for step in PAGES[page]:
        if isinstance(step, Given):
            step.prepare(reader)
            continue
        block = next(remaining)
        is_sh = isinstance(step, Run) or (block.language == "sh" and isinstance(step, NotRun))
        assert (block.language == "sh") == is_sh, f"{page}:{block.line}: {step}"
        try:
            follow(reader, step, block)
        except Exception as error:
            error.add_note(f"{page}:{block.line}: {step}")
            raise


def test_every_page_has_its_steps() -> None:
    found = {p.relative_to(ROOT).as_posix() for each in FOLLOWED for p in ROOT.glob(each)}
    assert {*PAGES} == found


@pytest.mark.parametrize("page", PAGES)
def test_the_steps_of_a_page_work_in_order(page: str, reader: Reader) -> None:
    follow_page(page, reader)


def test_every_reason_that_names_a_test_names_one_that_exists() -> None:
    reasons = [s.because for steps in PAGES.values() for s in steps if isinstance(s, NotRun)]
    files = re.findall(r"tests/[\w/]+\.\w+", " ".join((*reasons, *NOT_RUN.values())))
    assert files
    assert [file for file in files if not (ROOT / file).exists()] == []


@pytest.mark.parametrize(
    ("shown", "printed", "expected"),
    [
        ("a b\n", "a  b\n", True),
        ("a …\n", "a b c\n", True),
        ("a\n…\nd\n", "a\nb\nc\nd\n", True),
        ("a\n", "a\nb\n", False),
        ("a (x) 1.5 s\n", "a (x) 12 ms\n", True),
        ("4711  tool x is disabled\n", "12  tool x is disabled\n", True),
        ("3 of 3\n", "2 of 3\n", False),
    ],
)
def test_shown_output_is_compared_up_to_what_varies(
    shown: str, printed: str, expected: bool
) -> None:
    assert matches(shown, printed) is expected


def test_shown_json_is_compared_up_to_numbers_and_ellipses() -> None:
    assert matches_json({"a": [1, "…"], "b": "x…"}, {"a": [2, 3], "b": "xy"})
    assert not matches_json({"a": 1}, {"a": 1, "b": 2})
    assert not matches_json({"a": "x"}, {"a": "y"})


def test_every_command_that_is_not_run_is_in_a_guide() -> None:
    commands = {
        command.partition("  #")[0].rstrip()
        for page in PAGES
        for block in read_blocks(ROOT / page)
        if block.language == "sh"
        for command in split_commands(block.text)
    }
    assert [each for each in (*NOT_RUN, *REPLACED) if each not in commands] == []


def test_make_serve_runs_the_command_that_replaces_it() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    _, address = REPLACED["make serve"].split(" serve ")
    assert f"@$(BIN)/trunkline serve $(or $(ARGS),{address})\n" in makefile
