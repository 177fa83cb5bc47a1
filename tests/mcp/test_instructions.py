"""The instructions of servers, merged into one text."""

import pytest

from trunkline.mcp.instructions import (
    MAX_SERVER_CHARS,
    MAX_TOTAL_CHARS,
    ServerInstructions,
    clip_instructions,
    merge_instructions,
)

FILES = ServerInstructions("Files", "fs__", "Read before you write.")
WEB = ServerInstructions("Web", "", "Search first.")


@pytest.mark.parametrize("own", [None, "", "Be brief."])
def test_without_instructions_of_servers_the_gateways_own_stay(own: str | None) -> None:
    assert merge_instructions(own, []) == own


def test_each_server_has_a_section_under_its_title_in_the_given_order() -> None:
    files = '## Files\n\nThe names of its tools begin with "fs__" here.\n\nRead before you write.'
    web = "## Web\n\nSearch first."
    assert merge_instructions(None, [FILES, WEB]) == f"{files}\n\n{web}"
    assert merge_instructions("Be brief.", [WEB, FILES]) == f"Be brief.\n\n{web}\n\n{files}"


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("# Files\nx", "### Files\nx"),
        (
            "x\n  ## Files\n### Deep\n#tag\n####### no",
            "x\n  #### Files\n### Deep\n#tag\n####### no",
        ),
    ],
)
def test_headings_of_a_server_stay_below_its_title(text: str, written: str) -> None:
    assert merge_instructions(None, [WEB._replace(text=text)]) == f"## Web\n\n{written}"


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (None, None),
        ("", None),
        (" \n ", None),
        ("  x\n", "x"),
        ("x" * MAX_SERVER_CHARS, "x" * MAX_SERVER_CHARS),
        ("x" * (MAX_SERVER_CHARS + 1), "x" * (MAX_SERVER_CHARS - 1) + "…"),
    ],
)
def test_the_text_of_one_server_is_limited(text: str | None, kept: str | None) -> None:
    assert clip_instructions(text) == kept


def test_sections_that_do_not_fit_are_left_out_and_counted() -> None:
    large = ServerInstructions("Large", "", "x" * MAX_SERVER_CHARS)
    merged = merge_instructions("Own.", [large] * 5 + [WEB])
    assert merged is not None
    assert merged.count("## Large") == 3
    assert merged.endswith("Search first.\n\n(The instructions of 2 more servers are left out.)")
    assert len(merged) < MAX_TOTAL_CHARS + 200
