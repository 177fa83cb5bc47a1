"""ResolveContext: the home folder, the project, and the variables of VS Code."""

import os
from pathlib import Path

import pytest

from trunkline.config.references import ResolveContext


@pytest.mark.parametrize(
    ("environ", "home"),
    [
        ({"HOME": "/home/me", "USERPROFILE": "C:"}, "/home/me"),
        ({"HOME": "", "USERPROFILE": "C:"}, "C:"),
        ({}, None),
    ],
)
def test_the_home_folder_comes_from_the_environment(
    environ: dict[str, str], home: str | None
) -> None:
    context = ResolveContext(environ, Path("/etc"))
    assert context.home == context.vscode_place("userHome") == home


@pytest.mark.parametrize("folder", ["/project", "/project/.vscode", "/project/.cursor"])
def test_the_workspace_folder_contains_the_settings_folder(folder: str) -> None:
    context = ResolveContext({}, Path(folder))
    assert context.vscode_place("workspaceFolder") == "/project"
    assert context.vscode_place("workspaceFolderBasename") == "project"
    assert context.vscode_place("pathSeparator") == context.vscode_place("/") == os.sep


def test_each_context_has_its_own_list_of_files() -> None:
    ResolveContext({}, Path()).files.append(Path("a"))
    assert ResolveContext({}, Path()).files == []
