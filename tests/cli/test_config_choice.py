"""Which configuration is taken, and what is said of a bad one."""

from pathlib import Path

import pytest

from tests.cli.samples import config
from trunkline.app import DEFAULT
from trunkline.cli.config_choice import choose_config, locate, place


def test_the_option_goes_before_the_variable_and_that_before_the_folder(tmp_path: Path) -> None:
    environ = {"TRUNKLINE_CONFIG": "/named.toml"}
    usual = tmp_path / "trunkline.toml"
    usual.touch()
    assert locate(Path("/given.toml"), environ, tmp_path) == Path("/given.toml")
    assert locate(None, environ, tmp_path) == Path("/named.toml")
    assert locate(None, {"TRUNKLINE_CONFIG": ""}, tmp_path) == Path("trunkline.toml")
    usual.unlink()
    assert locate(None, {}, tmp_path) is None


def test_without_any_file_the_embedded_default_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TRUNKLINE_CONFIG", raising=False)
    assert choose_config(None) is DEFAULT
    assert place(DEFAULT) == "embedded default"


def test_a_file_is_named_by_its_absolute_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config(tmp_path, "[gateway]")
    assert place(choose_config(Path("some.toml"))) == str(tmp_path / "some.toml")


def test_all_that_is_wrong_is_said_at_once_and_ends_with_two(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = config(tmp_path, '[servers.a]\ncomand = "x"', "[servers.b]\nurl = 3")
    with pytest.raises(SystemExit) as caught:
        choose_config(Path(file))
    assert caught.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert f"trunkline: {file}:2: servers.a.comand: unknown key" in err
    assert "servers.b.url" in err
