"""The budgets that keep the code small, and the habits that a linter does not know."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
PYTHON = [
    p
    for part in ("src", "tests", "examples", "bench", "conformance", "fuzz", "outside")
    for p in (ROOT / part).rglob("*.py")
    if "node_modules" not in p.parts
]

MAX_FILE = 500
MAX_FUNCTION = 60
MAX_ARGUMENTS = 7
MAX_README = 150
FORBIDDEN = {"utils", "util", "helpers", "helper", "common", "manager", "types", "core", "misc"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def functions(path: Path) -> list[Function]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [node for node in ast.walk(tree) if isinstance(node, Function)]


@pytest.mark.parametrize("path", PYTHON, ids=name)
def test_a_file_is_small(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MAX_FILE


@pytest.mark.parametrize("path", PYTHON, ids=name)
def test_a_function_is_small(path: Path) -> None:
    sizes = {f.name: (f.end_lineno or f.lineno) - f.lineno + 1 for f in functions(path)}
    assert {name: size for name, size in sizes.items() if size > MAX_FUNCTION} == {}


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_a_constructor_takes_few_arguments(path: Path) -> None:
    for function in functions(path):
        if function.name == "__init__":
            count = len(function.args.args) - 1 + len(function.args.kwonlyargs)
            assert count <= MAX_ARGUMENTS, f"line {function.lineno} takes {count}"


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_a_module_has_a_name_of_its_own_and_says_what_it_is(path: Path) -> None:
    assert path.stem not in FORBIDDEN
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    assert docstring.splitlines()[0].endswith((".", "!"))


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_a_module_has_a_test_module_of_the_same_name(path: Path) -> None:
    if path.stem not in {"__init__", "__main__"}:
        relative = path.relative_to(ROOT / "src" / "trunkline")
        assert (ROOT / "tests" / relative).with_name(f"test_{relative.name}").exists()


@pytest.mark.parametrize("path", PYTHON, ids=name)
def test_classes_are_named_for_what_they_are(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ClassDef):
            assert not node.name.startswith(("Base", "Abstract")), node.name
            assert not node.name.endswith(("Impl", "Manager", "Helper")), node.name


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= MAX_README


def test_no_test_sleeps() -> None:
    for path in (ROOT / "tests").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("sleep"):
                assert ast.unparse(node.args[0]) == "0", f"{name(path)}:{node.lineno}"
