"""Every requirement is shown by a marked test, or is listed in `requirements.toml` with a reason.

A test names the requirements that it shows with `@pytest.mark.holds`. `make requirements` prints
the map from requirements to tests; it is generated, so nothing of it is committed.
"""

import ast
import re
import tomllib
from collections import defaultdict
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
REQUIREMENTS = TESTS / "requirements.toml"

SERIES = {
    "S0.": 21,
    "S1.": 34,
    "S2.": 26,
    "S3.": 24,
    "S4.": 16,
    "O0.": 21,
    "O1.": 13,
    "O2.": 8,
    "O3.": 5,
    "O4.": 6,
    "C": 32,
    "M": 16,
    "T": 110,
}
"""How many ids each series has. They are numbered from 1, so that no id can be left out."""

ID = re.compile(r"\b[A-Z]\d+(?:\.(?:\d+|[a-z]))?\b")
REASON = re.compile(rf"(?:Context|Open): .+|(?:Covered|Superseded) by {ID.pattern}.*")


def claims(tree: ast.Module) -> list[tuple[str, str]]:
    """Return (requirement, test) for every mark in a module."""
    found: list[tuple[str, str]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for mark in node.decorator_list:
                if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.holds":
                    found += [(ast.literal_eval(id), node.name) for id in mark.args]
    return found


def marked() -> dict[str, list[str]]:
    """Return the tests that show each requirement."""
    tests: defaultdict[str, list[str]] = defaultdict(list)
    for path in sorted(TESTS.rglob("test_*.py")):
        for id, test in claims(ast.parse(path.read_text(encoding="utf-8"))):
            tests[id].append(f"{path.relative_to(TESTS)}::{test}")
    return dict(tests)


def stated(table: str) -> dict[str, str]:
    """Return the sentence of each id in one table."""
    return tomllib.loads(REQUIREMENTS.read_text(encoding="utf-8"))[table]


@pytest.mark.holds("S0.21", "S1.34", "S2.23")
def test_every_requirement_is_shown_by_a_test() -> None:
    tests = marked()
    assert [id for id in stated("shown") if id not in tests] == []


def test_every_mark_names_a_requirement() -> None:
    requirements = stated("shown")
    assert {id: tests for id, tests in marked().items() if id not in requirements} == {}


def test_every_id_is_either_shown_or_listed_with_a_reason() -> None:
    shown, not_shown = stated("shown"), stated("not_shown")
    assert sorted(shown.keys() & not_shown.keys()) == []
    expected = [f"{name}{n}" for name, count in SERIES.items() for n in range(1, count + 1)]
    assert [id for id in expected if id not in shown and id not in not_shown] == []


def test_every_reason_has_a_kind_and_names_only_requirements_that_are_shown() -> None:
    shown = stated("shown")
    for id, reason in stated("not_shown").items():
        assert REASON.fullmatch(reason), id
        assert [other for other in ID.findall(reason) if other not in shown] == [], id


@pytest.mark.holds("S1.34")
def test_the_protocol_rules_of_the_brief_have_ten_tests() -> None:
    tests = marked()
    rules = [f"S1.{n}" for n in range(17, 33)]
    assert len({test for id in rules for test in tests.get(id, [])}) >= 10


def test_every_requirement_is_a_sentence() -> None:
    sentences = stated("shown") | stated("not_shown")
    assert [id for id, sentence in sentences.items() if not sentence.endswith(".")] == []


if __name__ == "__main__":
    tests = marked()
    for id, sentence in stated("shown").items():
        print(f"{id}  {sentence}", *(f"    {test}" for test in tests.get(id, [])), sep="\n")
    print("", "Not shown by a test:", sep="\n")
    for id, reason in stated("not_shown").items():
        print(f"{id}  {reason}")
