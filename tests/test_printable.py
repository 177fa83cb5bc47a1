"""Control characters are escaped, credentials redacted, and all other text is unchanged."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.printable import (
    REDACTED,
    clip_text,
    printable,
    printable_json,
    printable_lines,
    redact_userinfo,
)

ANY_TEXT = st.text(st.characters(), max_size=100)


def test_control_characters_are_escaped() -> None:
    assert printable("a\x1b[31m\n\tb\x9b") == "a\\x1b[31m\\x0a\\x09b\\x9b"
    assert printable("\u061c\u200e\u2028\u202e\u2066\ud800") == (
        "\\u061c\\u200e\\u2028\\u202e\\u2066\\ud800"
    )


def test_printable_text_is_unchanged() -> None:
    text = "Grüße, 你好\u3000世界, نمی\u200cخواهم, \U0001f469\u200d\U0001f680"
    assert printable(text) == printable_lines(text) == text


def test_text_is_cut_to_the_maximum_length() -> None:
    assert printable("abc", 3) == "abc"
    assert printable("abcd", 3) == "ab…"
    assert printable("\n\n\n\n", 3) == "\\x0a\\x0a…"


def test_lines_and_tabs_may_stay() -> None:
    assert printable_lines("a\r\n\tb\rc\u2028") == "a\n\tb\\x0dc\\u2028"


@given(ANY_TEXT)
def test_one_line_is_one_line_that_can_be_encoded(text: str) -> None:
    shown = printable(text)
    assert len(shown.splitlines()) <= 1
    assert shown.encode().decode() == shown
    assert printable(shown) == shown


@given(ANY_TEXT)
def test_each_of_several_lines_is_printable(text: str) -> None:
    for line in printable_lines(text).split("\n"):
        assert printable(line.replace("\t", " ")) == line.replace("\t", " ")


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=100))
def test_printable_json_is_equivalent(text: str) -> None:
    written = json.dumps({"a": text}, ensure_ascii=False, indent=2)
    shown = printable_json(written)
    assert json.loads(shown) == {"a": text}
    assert printable_lines(shown) == shown


TOKEN = "t" * 20


@pytest.mark.parametrize("any_name", [True, False])
@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("db://u:p@h/x", f"db://{REDACTED}@h/x"),
        ("db://u:p/q@h@h/x", f"db://{REDACTED}@h/x"),
        ("db://u:80@h/x", f"db://{REDACTED}@h/x"),
        (f"db://{TOKEN}@h/x", f"db://{REDACTED}@h/x"),
        ("db://h/see=db://u:p@h", f"db://h/see=db://{REDACTED}@h"),
        ("db://h:80/@x", "db://h:80/@x"),
        ("db://h/a@b", "db://h/a@b"),
        ("db://h", "db://h"),
        ("", ""),
    ],
)
def test_passwords_are_removed_and_hosts_stay(address: str, shown: str, any_name: bool) -> None:
    assert redact_userinfo(address, any_name) == shown


def test_a_short_name_stays_unless_names_are_removed() -> None:
    assert redact_userinfo("ssh://git@h/x") == "ssh://git@h/x"
    assert redact_userinfo("ssh://git@h/x", any_name=True) == f"ssh://{REDACTED}@h/x"


def test_a_password_that_was_cut_is_removed_too() -> None:
    assert redact_userinfo(clip_text("db://u:" + "p" * 100 + "@h", 20)) == f"db://{REDACTED}@"
    assert clip_text("db://h", 6) == "db://h"
