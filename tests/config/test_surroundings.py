"""Surroundings: the home, the project, and what the words of VS Code stand for."""

import os
from pathlib import Path

import pytest

from trunkline.config.surroundings import Surroundings


@pytest.mark.parametrize(
    ("environ", "home"),
    [
        ({"HOME": "/home/me", "USERPROFILE": "C:"}, "/home/me"),
        ({"HOME": "", "USERPROFILE": "C:"}, "C:"),
        ({}, None),
    ],
)
def test_a_home_is_what_the_environment_says(environ: dict[str, str], home: str | None) -> None:
    around = Surroundings(environ, Path("/etc"))
    assert around.home == around.place("userHome") == home


@pytest.mark.parametrize("folder", ["/project", "/project/.vscode", "/project/.cursor"])
def test_a_project_is_around_its_settings(folder: str) -> None:
    around = Surroundings({}, Path(folder))
    assert around.place("workspaceFolder") == "/project"
    assert around.place("workspaceFolderBasename") == "project"
    assert around.place("pathSeparator") == around.place("/") == os.sep


def test_each_has_files_of_its_own() -> None:
    Surroundings({}, Path()).files.append(Path("a"))
    assert Surroundings({}, Path()).files == []
