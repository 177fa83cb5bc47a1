"""Which configuration file is used, and how errors in it are reported."""

from pathlib import Path

import pytest

from tests.cli.samples import config
from trunkline.app.application import DEFAULT_CONFIG
from trunkline.cli.locations import choose_config, describe_source, locate_config, user_state_dir


def test_the_config_option_precedes_the_variable_and_the_default_file(tmp_path: Path) -> None:
    environ = {"TRUNKLINE_CONFIG": "/named.toml"}
    default_file = tmp_path / "trunkline.toml"
    default_file.touch()
    assert locate_config(Path("/given.toml"), environ, tmp_path) == Path("/given.toml")
    assert locate_config(None, environ, tmp_path) == Path("/named.toml")
    assert locate_config(None, {"TRUNKLINE_CONFIG": ""}, tmp_path) == Path("trunkline.toml")
    default_file.unlink()
    assert locate_config(None, {}, tmp_path) is None


def test_without_a_file_the_embedded_default_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TRUNKLINE_CONFIG", raising=False)
    assert choose_config(None) is DEFAULT_CONFIG
    assert describe_source(DEFAULT_CONFIG) == "embedded default"


def test_a_configuration_file_is_described_by_its_absolute_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config(tmp_path, "[gateway]")
    assert describe_source(choose_config(Path("some.toml"))) == str(tmp_path / "some.toml")


def test_all_configuration_errors_are_printed_at_once_and_exit_with_two(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = config(tmp_path, '[servers.a]\ncomand = "x"', "[servers.b]\nurl = 3")
    with pytest.raises(SystemExit) as error:
        choose_config(Path(file))
    assert error.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert f"trunkline: {file}:2: servers.a.comand: unknown key" in err
    assert "servers.b.url" in err


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
def test_the_state_directory_depends_on_the_platform(
    platform: str, environ: dict[str, str], folder: str | None
) -> None:
    assert user_state_dir(environ, platform) == (None if folder is None else Path(folder))
