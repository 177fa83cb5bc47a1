"""The requirement map, both ways: what it claims is tested, and what is tested is claimed.

`requirements.toml` lists every requirement that holds, in our own words, with the tests that show
it. A test says so itself, with `@pytest.mark.holds`. `make update` rewrites the lists of tests; the
words, and whether a requirement belongs there at all, are for people to decide.
"""

import ast
import tomllib
from collections import defaultdict
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
MAP = TESTS / "requirements.toml"


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
    tests: defaultdict[str, list[str]] = defaultdict(list)
    for path in sorted(TESTS.rglob("test_*.py")):
        for id, test in claims(ast.parse(path.read_text(encoding="utf-8"))):
            tests[id].append(f"{path.relative_to(TESTS)}::{test}")
    return dict(tests)


def written() -> dict[str, dict[str, object]]:
    return tomllib.loads(MAP.read_text(encoding="utf-8"))


def render(requirements: dict[str, dict[str, object]], tests: dict[str, list[str]]) -> str:
    comments = [line for line in MAP.read_text(encoding="utf-8").splitlines() if line[:1] == "#"]
    parts = ["\n".join(comments)]
    for id, entry in requirements.items():
        lines = "".join(f'    "{test}",\n' for test in sorted(tests.get(id, [])))
        parts.append(f'["{id}"]\nholds = "{entry["holds"]}"\ntests = [\n{lines}]')
    return "\n\n".join(parts) + "\n"


def test_the_map_and_the_tests_say_the_same(update: bool) -> None:
    tests = marked()
    if update:
        MAP.write_text(render(written(), tests), encoding="utf-8")
    claimed = {id: entry["tests"] for id, entry in written().items()}
    assert claimed == {id: sorted(found) for id, found in tests.items()}, "run `make update`"


@pytest.mark.holds("S0.21", "S2.23")
def test_every_requirement_that_holds_has_a_sentence_and_a_test() -> None:
    for id, entry in written().items():
        assert str(entry["holds"]).endswith("."), id
        assert entry["tests"], id
