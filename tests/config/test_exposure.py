"""A configuration that exposes secrets is accepted with a warning that names the remedy."""

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from trunkline.config import load_config
from trunkline.files import WritableByOthers, find_exposure, read_file

SERVER = '[servers.a]\ncommand = "x"\n'


def notes(folder: Path, text: str, **environ: str) -> tuple[str, ...]:
    file = folder / "trunkline.toml"
    file.write_text(text)
    file.chmod(0o644)
    return load_config(file, environ).notes


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that other users can enter, also if the home directory has the temporary files."""
    with TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder).resolve()


def test_a_secret_file_that_others_can_read_draws_a_warning(shared: Path) -> None:
    secret = shared / "token"
    secret.write_text("s3cret")
    secret.chmod(0o644)
    text = '[servers.a]\ncommand = "x"\nargs = ["${file:token}"]\n'
    (note,) = notes(shared, text)
    assert note == f'"{secret}": others may read it (mode 0644); run chmod go-rwx {secret}'
    secret.chmod(0o600)
    assert notes(shared, text) == ()


def test_a_private_folder_protects_a_secret_file(shared: Path) -> None:
    folder = shared / "private"
    folder.mkdir(mode=0o700)
    (folder / "token").write_text("s3cret")
    (folder / "token").chmod(0o644)
    assert find_exposure(folder / "token", is_secret=True) is None


def test_a_file_that_others_can_replace_is_no_file_for_keys(tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    keys = folder / "keys.json"
    keys.write_text("{}")
    keys.chmod(0o600)
    folder.chmod(0o777)
    reason = f"others may replace it: {folder} has mode 0777; run chmod go-w {folder}"
    assert find_exposure(keys) == reason
    with pytest.raises(WritableByOthers, match="others may replace it"):
        read_file(keys, 100, owner_only=True)
    folder.chmod(0o1777)
    assert read_file(keys, 100, owner_only=True) == b"{}"
    keys.chmod(0o606)
    assert str(find_exposure(keys)).startswith("others may write to it (mode 0606)")


def test_a_file_of_another_user_is_not_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "keys.json"
    file.write_text("{}")
    if os.getuid() == 0:  # files of root are trusted
        os.chown(file, 64998, 64998)
    owner = file.stat().st_uid
    monkeypatch.setattr("os.getuid", lambda: owner + 1)
    assert str(find_exposure(file)).startswith(f"it belongs to user {owner}")


def test_a_missing_file_is_reported_by_its_reader(tmp_path: Path) -> None:
    assert find_exposure(tmp_path / "none") is None
    with pytest.raises(FileNotFoundError):
        read_file(tmp_path / "none", 100, owner_only=True)


@pytest.mark.parametrize(
    ("more", "is_exposed"),
    [
        ('headers = { Authorization = "Bearer x" }', True),
        ('headers = { User-Agent = "me" }', False),
        ("", False),
    ],
)
def test_credentials_over_plain_http_draw_a_warning(
    tmp_path: Path, more: str, is_exposed: bool
) -> None:
    server = f'[servers.a]\nurl = "http://api.example/mcp"\n{more}\n'
    expected = "servers.a.url: credentials are sent unencrypted; use https:// or a tunnel"
    assert notes(tmp_path, server) == ((expected,) if is_exposed else ())
    assert notes(tmp_path, server.replace("api.example", "127.0.0.1:8000")) == ()
    assert notes(tmp_path, server.replace("http:", "https:")) == ()
    assert notes(tmp_path, server.replace("/mcp", "/mcp?token=abcdef")) == (expected,)
    assert notes(tmp_path, f"{server}disabled = true\n") == ()


@pytest.mark.parametrize(
    "name", ["HTTPS_PROXY", "PIP_INDEX_URL", "UV_INDEX_URL", "npm_config_registry"]
)
def test_inherited_credentials_draw_a_warning_without_their_value(
    tmp_path: Path, name: str
) -> None:
    value = "http://ann:hunter2@proxy.example:3128"
    (note,) = notes(tmp_path, SERVER, **{name: value})
    assert note.startswith(f"{name}: every server with a command inherits the credentials")
    assert "hunter2" not in note
    assert notes(tmp_path, SERVER, **{name: "http://proxy.example:3128"}) == ()
    assert notes(tmp_path, "", **{name: value}) == ()


@pytest.mark.parametrize(
    ("table", "is_exposed"),
    [
        ('env = { API_KEY = "hunter2-hunter2" }', True),
        ('args = ["--token", "hunter2-hunter2"]', True),
        (
            '[servers.b]\nurl = "https://b"\nheaders = { X-Api-Key = "hunter2-hunter2" }',
            True,
        ),
        ('env = { API_KEY = "${KEY}" }', False),
        ('env = { LEVEL = "hunter2-hunter2" }', False),
        ('args = ["hunter2-hunter2"]', False),
    ],
)
def test_a_readable_configuration_with_a_secret_draws_a_warning(
    shared: Path, table: str, is_exposed: bool
) -> None:
    found = notes(shared, f"{SERVER}{table}\n", KEY="hunter3-hunter3")
    file = shared / "trunkline.toml"
    note = f'"{file}": others may read it (mode 0644); run chmod go-rwx {file}'
    assert found == ((note,) if is_exposed else ())


def test_a_reference_to_an_unset_variable_is_no_secret(shared: Path) -> None:
    header = 'headers = { Authorization = "Bearer ${UNSET_TOKEN}" }'
    assert notes(shared, f'[servers.a]\nurl = "https://api.example/mcp"\n{header}\n') == ()
