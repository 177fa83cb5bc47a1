"""`gateway.surface`: what is listed, and what that needs."""

from pathlib import Path

import pytest

from trunkline.config import Config, ConfigErrors, load

SEARCH = '[servers.search]\nbuiltin = "search"\n'


def write(folder: Path, surface: str, more: str = "") -> Path:
    file = folder / "trunkline.toml"
    file.write_text(f"[gateway]\nsurface = {surface}\n{more}", encoding="utf-8")
    return file


def errors_of(folder: Path, surface: str, more: str = "") -> list[str]:
    file = write(folder, surface, more)
    with pytest.raises(ConfigErrors) as caught:
        load(file, {})
    return [str(error).removeprefix(f"{file}:") for error in caught.value.errors]


def test_without_a_word_everything_is_listed() -> None:
    assert Config().gateway.surface == "all"


@pytest.mark.parametrize(
    ("surface", "means"),
    [
        ('"all"', "all"),
        ('"search"', "search"),
        ('["fs__*", "git__git_log"]', ("fs__*", "git__git_log")),
        ("[]", ()),
    ],
)
def test_a_word_or_a_list_of_patterns_says_what_is_listed(
    tmp_path: Path, surface: str, means: object
) -> None:
    assert load(write(tmp_path, surface, SEARCH), {}).gateway.surface == means


@pytest.mark.parametrize("more", ["", SEARCH + "disabled = true\n", '[servers.x]\ncommand = "x"\n'])
def test_a_list_that_nothing_would_be_on_is_refused(tmp_path: Path, more: str) -> None:
    assert errors_of(tmp_path, '"search"', more) == [
        '2: gateway.surface: there is no server with builtin = "search", so that nothing would be '
        'listed; add builtin = "search" below [servers.search]'
    ]


@pytest.mark.parametrize(
    ("surface", "error"),
    [
        ('"serch"', 'gateway.surface: expected "all" or "search"; did you mean "search"?'),
        ("true", 'gateway.surface: expected "all" or "search"; choose one'),
        ('["fs.*"]', "gateway.surface[0]: expected the name of a tool, with * and ? for what"),
        ("[1]", "gateway.surface[0]: expected text, got a whole number"),
    ],
)
def test_what_is_neither_is_refused(tmp_path: Path, surface: str, error: str) -> None:
    (found,) = errors_of(tmp_path, surface)
    assert error in found
