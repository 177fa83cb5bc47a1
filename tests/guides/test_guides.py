"""Every command of README, the start page and the guides works, in the order of the page."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.guides.manual import NOT_RUN, PAGES, REPLACED, ROOT, Given, NotRun, Run, follow
from tests.guides.reader import Reader, read_blocks, split_commands

FOLLOWED = ["README.md", "docs/start/*.md", "docs/guides/*.md"]


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    """A reader for whom `npx` and `uvx` start a stand-in."""
    stand_in = Path(__file__).with_name("stand_in.py")
    for name in ("npx", "uvx"):
        program = tmp_path / name
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -SE "{stand_in}" "$@"\n')
        program.chmod(0o755)
    reader = Reader([tmp_path, Path(sys.executable).parent], {})
    try:
        yield reader
    finally:
        reader.close()


def test_every_page_has_its_steps() -> None:
    found = {p.relative_to(ROOT).as_posix() for each in FOLLOWED for p in ROOT.glob(each)}
    assert {*PAGES} == found


@pytest.mark.parametrize("page", PAGES)
def test_the_steps_of_a_page_work_in_order(page: str, reader: Reader) -> None:
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
            follow(reader, page, step, block)
        except Exception as error:
            error.add_note(f"{page}:{block.line}: {step}")
            raise


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
