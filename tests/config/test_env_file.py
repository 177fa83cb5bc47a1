"""Files of KEY=VALUE lines."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.config.env_file import parse_env_file


def parse(text: str) -> tuple[dict[str, str], list[str]]:
    problems: list[str] = []
    found = parse_env_file(text, '".env"', lambda why, fix: problems.append(f"{why}; {fix}"))
    return found, problems


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("A=1", "1"),
        ("  A = two words  ", "two words"),
        ("export A=1", "1"),
        ("A=", ""),
        ("A=b=c", "b=c"),
        ("A=1 # a comment", "1"),
        ("A=# a comment", ""),
        ("A=a#b", "a#b"),
        ('A="x # y" # a comment', "x # y"),
        ('A="a\\nb\\"c\\\\"', 'a\nb"c\\'),
        ("A='a\\nb'", "a\\nb"),
        ('A="open', '"open'),
        ("A=${B}", "${B}"),
    ],
)
def test_a_line_sets_a_variable(line: str, value: str) -> None:
    assert parse(line) == ({"A": value}, [])


def test_blank_lines_and_comments_set_none() -> None:
    assert parse("\n  \n# A=1\r\nB=2\r\n") == ({"B": "2"}, [])


def test_a_line_that_sets_none_is_named_but_not_shown() -> None:
    found, problems = parse("A=1\nsecret\n=x")
    assert found == {"A": "1"}
    assert problems == [
        'line 2 of ".env" is not KEY=VALUE; mend it, or put # before it',
        'line 3 of ".env" is not KEY=VALUE; mend it, or put # before it',
    ]


@given(st.text() | st.text(alphabet="A=\"'\\# \nexport"))
def test_any_text_gives_variables_or_problems(text: str) -> None:
    found, _ = parse(text)
    assert all(name and "=" not in name for name in found)
