"""Where what was found out is kept, on every system."""

from pathlib import Path

import pytest

from trunkline.cli.state_folder import state_folder


@pytest.mark.parametrize(
    ("platform", "environ", "folder"),
    [
        ("linux", {"XDG_STATE_HOME": "/s", "HOME": "/h"}, "/s/trunkline"),
        ("linux", {"HOME": "/h"}, "/h/.local/state/trunkline"),
        ("linux", {"XDG_STATE_HOME": "relative", "HOME": "/h"}, "/h/.local/state/trunkline"),
        ("linux", {"XDG_STATE_HOME": "", "HOME": "/h"}, "/h/.local/state/trunkline"),
        ("darwin", {"HOME": "/h"}, "/h/Library/Application Support/trunkline"),
        ("darwin", {"XDG_STATE_HOME": "/s", "HOME": "/h"}, "/s/trunkline"),
        ("win32", {"LOCALAPPDATA": "/l", "USERPROFILE": "/h"}, "/l/trunkline"),
        ("win32", {"USERPROFILE": "/h"}, "/h/AppData/Local/trunkline"),
        ("linux", {"HOME": "relative"}, None),
        ("linux", {}, None),
        ("win32", {"HOME": "/h"}, None),
    ],
)
def test_a_folder_is_found_where_the_system_has_one(
    platform: str, environ: dict[str, str], folder: str | None
) -> None:
    assert state_folder(environ, platform) == (None if folder is None else Path(folder))
