"""What is not to be seen in a text is spelled out, and all else is as it was."""

import json

from hypothesis import given
from hypothesis import strategies as st

from trunkline.visible import visible, visible_json, visible_lines

WILD = st.text(st.characters(), max_size=100)


def test_what_is_not_to_be_seen_is_spelled_out() -> None:
    assert visible("a\x1b[31m\n\tb\x9b") == "a\\x1b[31m\\x0a\\x09b\\x9b"
    assert visible("\u061c\u200e\u2028\u202e\u2066\ud800") == (
        "\\u061c\\u200e\\u2028\\u202e\\u2066\\ud800"
    )


def test_what_people_write_is_as_it_was() -> None:
    said = "Grüße, 你好\u3000世界, نمی\u200cخواهم, \U0001f469\u200d\U0001f680"
    assert visible(said) == visible_lines(said) == said


def test_a_text_may_have_so_many_characters_and_no_more() -> None:
    assert visible("abc", 3) == "abc"
    assert visible("abcd", 3) == "ab…"
    assert visible("\n\n\n\n", 3) == "\\x0a\\x0a…"


def test_lines_and_tabs_may_stay() -> None:
    assert visible_lines("a\r\n\tb\rc\u2028") == "a\n\tb\\x0dc\\u2028"


@given(WILD)
def test_one_line_is_one_line_that_can_be_encoded(text: str) -> None:
    shown = visible(text)
    assert len(shown.splitlines()) <= 1
    assert shown.encode().decode() == shown
    assert visible(shown) == shown


@given(WILD)
def test_several_lines_are_lines_that_can_be_shown_by_themselves(text: str) -> None:
    for line in visible_lines(text).split("\n"):
        assert visible(line.replace("\t", " ")) == line.replace("\t", " ")


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=100))
def test_json_that_is_made_visible_means_the_same(text: str) -> None:
    written = json.dumps({"a": text}, ensure_ascii=False, indent=2)
    shown = visible_json(written)
    assert json.loads(shown) == {"a": text}
    assert visible_lines(shown) == shown
