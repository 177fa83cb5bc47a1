"""Environment files with KEY=VALUE lines."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.config.references import parse_env_file


def parse(text: str) -> tuple[dict[str, str], list[str]]:
    problems: list[str] = []
    variables = parse_env_file(text, '".env"', lambda why, fix: problems.append(f"{why}; {fix}"))
    return variables, problems


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


def test_blank_lines_and_comments_set_no_variable() -> None:
    assert parse("\n  \n# A=1\r\nB=2\r\n") == ({"B": "2"}, [])


def test_an_invalid_line_is_reported_by_number_and_not_shown() -> None:
    variables, problems = parse("A=1\nsecret\n=x")
    assert variables == {"A": "1"}
    assert problems == [
        'line 2 of ".env" is not KEY=VALUE; fix it, or put # before it',
        'line 3 of ".env" is not KEY=VALUE; fix it, or put # before it',
    ]


@given(st.text() | st.text(alphabet="A=\"'\\# \nexport"))
def test_any_text_can_be_parsed(text: str) -> None:
    variables, _ = parse(text)
    assert all(name and "=" not in name for name in variables)
