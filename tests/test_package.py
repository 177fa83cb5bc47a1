"""The package as others install it."""

import ast
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

import trunkline
from tests.tasks import HANG_TIMEOUT
from trunkline import jsonrpc

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(target)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=HANG_TIMEOUT)
    (built,) = target.iterdir()
    return built


def test_the_wheel_has_types_the_schema_and_the_licence(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert "trunkline/py.typed" in names
    assert "trunkline/jsonrpc/jsonrpc.schema.json" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not [name for name in names if not name.startswith("trunkline")]


def test_the_sdist_has_nothing_but_sources(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=HANG_TIMEOUT)
    (built,) = tmp_path.iterdir()
    with tarfile.open(built) as archive:
        paths = [Path(name).parts[1:] for name in archive.getnames()]
    folders = {parts[0] for parts in paths if len(parts) > 1}
    assert folders == {"src", "tests", "docs", "examples", "packaging"}
    assert {parts[0] for parts in paths} - folders == {
        ".gitignore",
        "CHANGELOG.md",
        "LICENSE",
        "PKG-INFO",
        "README.md",
        "pyproject.toml",
    }


def test_the_engine_works_from_the_wheel_alone_and_imports_nothing_of_the_gateway(
    wheel: Path,
) -> None:
    program = f"""
import sys
sys.path.insert(0, {str(wheel)!r})
import trunkline.jsonrpc as engine
from trunkline.jsonrpc.schema import shipped_schema
assert engine.__file__.startswith({str(wheel)!r}), engine.__file__
assert engine.decode(b'{{"jsonrpc":"2.0","id":1,"result":null}}') == engine.Response(1, None)
assert shipped_schema() == engine.message_schema()
ours = {{name.split(".")[1] for name in sys.modules if name.startswith("trunkline.")}}
assert ours == {{"jsonrpc"}}, ours
"""
    command = [sys.executable, "-I", "-c", program]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=HANG_TIMEOUT, check=False
    )
    assert done.stderr == ""


def test_the_engine_and_its_streams_need_no_package_but_msgspec() -> None:
    program = """
import sys
import trunkline.jsonrpc, trunkline.stdio.stream
print(*{name.partition(".")[0] for name in sys.modules} - sys.stdlib_module_names)
"""
    command = [sys.executable, "-P", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_TIMEOUT, check=True)
    found = {name for name in done.stdout.split() if not name.startswith(("__", "_virtualenv"))}
    # msgspec imports typing_extensions where it is installed; an environment may add the other.
    assert found - {"typing_extensions", "_distutils_hack"} == {"msgspec", "trunkline"}


def read_project(file: str) -> dict[str, Any]:
    return tomllib.loads((ROOT / file).read_text(encoding="utf-8"))["project"]


def test_users_install_the_command_and_the_same_version_with_all_packages() -> None:
    slim, users = read_project("pyproject.toml"), read_project("packaging/trunkline/pyproject.toml")
    assert [each.partition(">")[0] for each in slim["dependencies"]] == ["msgspec"]
    version = trunkline.__version__
    assert (users["name"], users["version"]) == ("trunkline", version)
    assert users["dependencies"] == [f"{slim['name']}[gateway]=={version}"]
    assert users["scripts"] == {"trunkline": "trunkline.cli:main"}
    assert users["optional-dependencies"] == {
        extra: [f"{slim['name']}[{extra}]=={version}"]
        for extra in slim["optional-dependencies"]
        if extra != "gateway"
    }
    for key in ("requires-python", "license", "keywords"):
        assert users[key] == slim[key]


def test_both_packages_name_the_same_systems_and_versions() -> None:
    listed = [
        [each for each in read_project(file)["classifiers"] if each.startswith(("Op", "Pro"))]
        for file in ("pyproject.toml", "packaging/trunkline/pyproject.toml")
    ]
    assert listed[0] == listed[1]
    assert listed[0][:2] == ["Operating System :: MacOS", "Operating System :: POSIX :: Linux"]


def test_the_lock_has_the_packages_of_the_gateway() -> None:
    slim = read_project("pyproject.toml")
    extras = slim["optional-dependencies"]
    wanted = {*slim["dependencies"], *extras["gateway"], *extras["conditions"]}
    lock = (ROOT / "requirements/runtime.in").read_text(encoding="utf-8").splitlines()
    assert {each.replace('"', "'") for each in lock} == wanted


def test_without_the_packages_of_the_gateway_every_command_says_what_to_install() -> None:
    program = """
import sys
from importlib.machinery import PathFinder
find = PathFinder.find_spec
PathFinder.find_spec = lambda name, *rest: None if name == "typer" else find(name, *rest)
from trunkline.cli import main
sys.exit(main(sys.argv[1:]))
"""
    for arguments in (["serve"], ["check"], []):
        command = [sys.executable, "-c", program, *arguments]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=HANG_TIMEOUT, check=False
        )
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr == (
            "trunkline: the packages of the gateway are not installed; "
            "install them: pip install trunkline\n"
        )


CONFIG = """[servers.me]
builtin = "operator"
[[policy]]
allow = "*"
"""

CALL = """
import sys
from trunkline.cli import main
try:
    main(sys.argv[1:])
finally:
    print(*sys.modules)
"""


def run_program(program: str, folder: Path, config: str, *command: str) -> CompletedProcess[str]:
    file = folder / "trunkline.toml"
    file.write_text(config, encoding="utf-8")
    arguments = [sys.executable, "-c", program, *command, "--config", str(file)]
    return subprocess.run(
        arguments, capture_output=True, text=True, timeout=HANG_TIMEOUT, check=False
    )


def test_a_gateway_without_conditions_and_metrics_imports_neither_library(tmp_path: Path) -> None:
    done = run_program(CALL, tmp_path, CONFIG, "call", "me__status")
    modules = set(done.stdout.split())
    assert "trunkline.routing.conditions" in modules
    assert modules & {"cel_expr_python", "prometheus_client"} == set()
    with_condition = run_program(CALL, tmp_path, f'{CONFIG}when = "true"', "call", "me__status")
    assert "cel_expr_python" in with_condition.stdout.split()


# As on musl, for which there are no wheels
WITHOUT_CEL = f"import sys\nsys.modules['cel_expr_python'] = None\n{CALL}"


def test_without_the_cel_package_only_conditions_are_refused(tmp_path: Path) -> None:
    called = run_program(WITHOUT_CEL, tmp_path, CONFIG, "call", "me__status")
    assert (called.returncode, called.stderr) == (0, "")
    refused = run_program(WITHOUT_CEL, tmp_path, f'{CONFIG}when = "true"', "call", "me__status")
    assert refused.returncode == 2
    assert refused.stderr.strip().endswith(
        "trunkline.toml:5: policy[0].when: conditions need the package cel-expr-python, which is "
        "not installed; install it: pip install 'trunkline[conditions]', or remove the condition"
    )


def test_what_is_public_is_sorted_and_there() -> None:
    assert len(set(jsonrpc.__all__)) == len(jsonrpc.__all__)
    assert [name for name in jsonrpc.__all__ if not hasattr(jsonrpc, name)] == []


def classes() -> list[ast.ClassDef]:
    """Return every class of the package, as source."""
    trees = (ast.parse(file.read_text("utf-8")) for file in sorted((ROOT / "src").rglob("*.py")))
    return [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]


def test_every_repr_names_its_class() -> None:
    named = {
        each.name: {found[1] for found in re.finditer(r"\bf'(\w+)\(", ast.unparse(method))}
        for each in classes()
        for method in each.body
        if isinstance(method, ast.FunctionDef) and method.name == "__repr__"
    }
    assert len(named) > 5
    assert {name: found for name, found in named.items() if found - {name}} == {}
