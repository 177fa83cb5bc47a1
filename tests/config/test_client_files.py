"""Where MCP clients keep their configuration files."""

from pathlib import Path

import pytest

from trunkline.config.client_files import ClientFile, find_client_files

FILES_BY_PLATFORM = {
    "darwin": {
        "Library/Application Support/Claude/claude_desktop_config.json": "Claude Desktop",
        "Library/Application Support/Code/User/mcp.json": "VS Code",
        ".config/zed/settings.json": "Zed",
    },
    "linux": {
        ".config/Claude/claude_desktop_config.json": "Claude Desktop",
        ".config/Code/User/mcp.json": "VS Code",
        ".config/zed/settings.json": "Zed",
        ".config/Code - Insiders/User/mcp.json": "VS Code",
        ".config/VSCodium/User/mcp.json": "VS Code",
        ".config/Code/User/globalStorage/saoudrizwan.claude-dev/settings/"
        "cline_mcp_settings.json": "Cline",
        ".config/Code/User/globalStorage/rooveterinaryinc.roo-cline/settings/"
        "mcp_settings.json": "Roo Code",
    },
    "win32": {
        "AppData/Roaming/Claude/claude_desktop_config.json": "Claude Desktop",
        "AppData/Roaming/Code/User/mcp.json": "VS Code",
        "AppData/Roaming/Zed/settings.json": "Zed",
    },
}
FILES_ON_ALL_PLATFORMS = {
    ".claude.json": "Claude Code",
    ".cursor/mcp.json": "Cursor",
    ".codeium/windsurf/mcp_config.json": "Windsurf",
    ".gemini/settings.json": "Gemini CLI",
    ".codex/config.toml": "Codex",
}


def touch(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{}")
    return path


@pytest.mark.parametrize("platform", FILES_BY_PLATFORM)
def test_the_default_file_of_every_client_is_found(tmp_path: Path, platform: str) -> None:
    expected = FILES_BY_PLATFORM[platform] | FILES_ON_ALL_PLATFORMS
    for name in expected:
        touch(tmp_path / name)
    found = find_client_files(tmp_path, {}, platform)
    assert {str(f.path.relative_to(tmp_path)): f.client for f in found} == expected


@pytest.mark.parametrize(
    ("platform", "variable", "name"),
    [
        ("linux", "XDG_CONFIG_HOME", "Claude/claude_desktop_config.json"),
        ("win32", "APPDATA", "Claude/claude_desktop_config.json"),
        ("linux", "CLAUDE_CONFIG_DIR", ".claude.json"),
        ("linux", "CODEX_HOME", "config.toml"),
    ],
)
def test_environment_variables_can_move_the_client_files(
    tmp_path: Path, platform: str, variable: str, name: str
) -> None:
    path = touch(tmp_path / "elsewhere" / name)
    environ = {variable: str(tmp_path / "elsewhere")}
    assert [f.path for f in find_client_files(tmp_path, environ, platform)] == [path]


def test_project_files_come_last(tmp_path: Path) -> None:
    user_file = touch(tmp_path / ".cursor" / "mcp.json")
    project = tmp_path / "project"
    names = (".mcp.json", ".cursor/mcp.json", ".vscode/mcp.json")
    project_files = [touch(project / name) for name in names]
    assert find_client_files(tmp_path, {}, "linux", project) == [
        ClientFile("Cursor", user_file),
        ClientFile("Claude Code", project_files[0]),
        ClientFile("Cursor", project_files[1]),
        ClientFile("VS Code", project_files[2]),
    ]


def test_a_home_folder_that_is_the_project_is_searched_once(tmp_path: Path) -> None:
    files = [touch(tmp_path / ".cursor" / "mcp.json"), touch(tmp_path / ".mcp.json")]
    found = find_client_files(tmp_path, {}, "linux", tmp_path)
    assert sorted(file.path for file in found) == sorted(files)


def test_folders_and_broken_links_are_not_found(tmp_path: Path) -> None:
    (tmp_path / ".claude.json").mkdir()
    (tmp_path / ".cursor").symlink_to("gone")
    assert find_client_files(tmp_path, {}, "linux", tmp_path / "nope") == []


def test_an_unreadable_folder_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> bool:
        raise PermissionError(path)

    monkeypatch.setattr(Path, "is_file", refuse)
    assert find_client_files(tmp_path, {}, "linux") == []
