"""The command line: what it accepts, what it refuses, and how plainly."""

import argparse

import pytest

from trunkline import __version__, cli


def test_it_says_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"trunkline {__version__}\n"


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:8765", ("127.0.0.1", 8765)),
        ("localhost:0", ("localhost", 0)),
        ("[::1]:80", ("::1", 80)),
    ],
)
def test_a_loopback_address_is_accepted(text: str, address: tuple[str, int]) -> None:
    assert cli.address(text) == address


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("8765", "expected HOST:PORT, such as 127.0.0.1:8765, got '8765'"),
        ("", "expected HOST:PORT"),
        ("127.0.0.1:x", "expected HOST:PORT"),
        ("example.org:80", "expected HOST:PORT"),
        ("127.0.0.1:65536", "expected a port from 0 to 65535, got 65536"),
        ("0.0.0.0:80", "expected a loopback address, got '0.0.0.0'"),
        ("[::]:80", "expected a loopback address, got '::'"),
    ],
)
def test_any_other_address_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError) as caught:
        cli.address(text)
    assert str(caught.value).startswith(reason)


@pytest.mark.parametrize("arguments", [[], ["nonsense"], ["serve", "--stdio", "--tcp", "[::1]:0"]])
def test_bad_arguments_end_with_two(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)
    assert caught.value.code == 2
    assert "usage: trunkline" in capsys.readouterr().err


def test_what_cannot_be_served_is_said_and_ends_with_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object) -> None:
        raise OSError("address already in use")

    monkeypatch.setattr(cli, "serve_tcp", refuse)
    assert cli.main(["serve"]) == 1
    assert capsys.readouterr().err == "trunkline: cannot serve: address already in use\n"
