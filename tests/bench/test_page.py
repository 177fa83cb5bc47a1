"""The manual shows the stored figures of the benchmarks."""

from pathlib import Path

import pytest

from bench.page import PAGES, with_figures


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_shows_the_figures_of_the_stored_results(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text.count("<!-- figures: ") == text.count("<!-- end of figures -->") > 0
    assert with_figures(text) == text, "run `python -m bench.page`"


def test_figures_of_unknown_name_are_an_error() -> None:
    with pytest.raises(KeyError, match="hopp"):
        with_figures("<!-- figures: hopp -->\n<!-- end of figures -->\n")


def test_figures_that_were_changed_by_hand_are_written_anew() -> None:
    page = PAGES[1].read_text(encoding="utf-8")
    changed = page.replace("| plain | ", "| plainly | ")
    assert changed != page
    assert with_figures(changed) == page
