"""Every requirement in `requirements.toml` is shown by a marked test, and every mark names one.

A test names the requirements that it shows with `@pytest.mark.holds`. `make requirements` prints
the map from requirements to tests; it is generated, so nothing of it is committed.
"""

import ast
import tomllib
from collections import defaultdict
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
REQUIREMENTS = TESTS / "requirements.toml"


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


def stated() -> dict[str, str]:
    """Return the sentence of each requirement."""
    return tomllib.loads(REQUIREMENTS.read_text(encoding="utf-8"))


@pytest.mark.holds("S0.21", "S2.23")
def test_every_requirement_is_shown_by_a_test() -> None:
    tests = marked()
    assert [id for id in stated() if id not in tests] == []


def test_every_mark_names_a_requirement() -> None:
    requirements = stated()
    assert {id: tests for id, tests in marked().items() if id not in requirements} == {}


def test_every_requirement_is_a_sentence() -> None:
    assert [id for id, sentence in stated().items() if not sentence.endswith(".")] == []


if __name__ == "__main__":
    tests = marked()
    for id, sentence in stated().items():
        print(f"{id}  {sentence}", *(f"    {test}" for test in tests.get(id, [])), sep="\n")
