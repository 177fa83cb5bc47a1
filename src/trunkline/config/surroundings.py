"""Surroundings: what a file means by its references and paths, which depends on where it is.

Refuses to resolve anything: `substitute` does that for references, `paths` for paths.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from msgspec import Struct, field

Problem = Callable[[str, str], None]
"""Takes what is wrong with a string: why, and how to mend it."""

_PROJECT_FOLDERS = (".vscode", ".cursor")


class Surroundings(Struct, frozen=True):
    """What references are resolved against; `inputs` are the ids that a file declares.

    `files` takes in what is read on the way: when one of them changes, so does what was read.
    """

    environ: Mapping[str, str]
    folder: Path
    inputs: Mapping[str, str | None] = {}
    is_client: bool = False
    files: list[Path] = field(default_factory=list[Path])

    @property
    def home(self) -> str | None:
        """The user's home, if the environment knows it."""
        return self.environ.get("HOME") or self.environ.get("USERPROFILE")

    def place(self, name: str) -> str | None:
        """Return what one of VS Code's own names stands for."""
        project = self.folder.parent if self.folder.name in _PROJECT_FOLDERS else self.folder
        return {
            "workspaceFolder": str(project),
            "workspaceFolderBasename": project.name,
            "userHome": self.home,
        }.get(name, os.sep)
