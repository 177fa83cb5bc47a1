"""`trunkline sources`: what a curator does, from the first key to a verified registry."""

import json
from pathlib import Path

import pytest
from typer.testing import Result

from tests.cli.samples import run
from tests.sources.registries import PUBKEY, TREE, tree, write
from trunkline.sources.edit import log_path
from trunkline.sources.load import load

TOPIC = [
    *("--name", "Sewing", "--description", "Needle and thread."),
    *("--pattern", "learn sewing", "--pattern", "sew a hem", "--pattern", "sewing machine"),
]
SOURCES = [f"book|Book {n}|https://sew.example/{n}|Good | plain" for n in (1, 2, 3)]


@pytest.fixture
def key(tmp_path: Path) -> Path:
    path = tmp_path / "my.key"
    done = run("sources", "keygen", str(path))
    assert done.exit_code == 0
    return path


def add(path: Path, slug: str, *more: str, sources: list[str] = SOURCES) -> Result:
    given = [word for source in sources for word in ("--source", source)]
    return run("sources", "add", str(path), slug, *TOPIC, *given, *more)


def begun(path: Path, key: Path) -> Path:
    done = add(path, "sewing", "--curator", "Ada", "--key", str(key))
    assert done.exit_code == 0, done.output
    return path


def test_a_key_is_made_once_and_never_printed(tmp_path: Path) -> None:
    path = tmp_path / "k"
    done = run("sources", "keygen", str(path))
    assert len(done.stdout.strip()) == 64
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.read_text().splitlines()[1] not in done.output
    again = run("sources", "keygen", str(path))
    assert again.exit_code == 1
    assert "is there already" in again.stderr
    nowhere = run("sources", "keygen", str(tmp_path / "no" / "k"))
    assert (nowhere.exit_code, "cannot write" in nowhere.stderr) == (1, True)


@pytest.mark.parametrize("name", ["mine.json", "mine.toml"])
def test_a_registry_is_begun_signed_verified_and_matched(
    tmp_path: Path, key: Path, name: str
) -> None:
    path = begun(tmp_path / name, key)
    assert load(path).is_signed
    verified = run("sources", "verify", str(path))
    assert verified.exit_code == 0, verified.output
    assert "5 entries hold" in verified.stdout
    good = run("sources", "validate", str(path))
    assert good.stdout == f"{path}: good, 1 topics, signed\n"
    found = run("sources", "match", "learn to sew", "--registry", str(path))
    assert (found.exit_code, "sewing" in found.stdout) == (0, True)


def test_a_topic_that_is_added_without_a_key_waits_for_its_signature(
    tmp_path: Path, key: Path
) -> None:
    path = begun(tmp_path / "a.json", key)
    path.write_text(path.read_text().replace("sew", "mend").replace("Sew", "Mend"))
    assert run("sources", "verify", str(path)).exit_code == 2
    done = add(path, "sewing")
    assert (done.exit_code, "not signed" in done.stdout) == (0, True)
    unsigned = run("sources", "verify", str(path))
    assert (unsigned.exit_code, "not signed" in unsigned.stderr) == (1, True)
    signed = run("sources", "sign", str(path), "--key", str(key))
    assert signed.exit_code == 0, signed.output
    assert "entries added" in signed.stderr
    assert run("sources", "verify", str(path)).exit_code == 0


def test_what_is_not_good_is_not_added(tmp_path: Path, key: Path) -> None:
    path = tmp_path / "a.json"
    for more in ((), ("--curator", "Ada"), ("--key", str(key))):
        done = add(path, "sewing", *more)
        assert (done.exit_code, "to begin it, say --curator" in done.stderr) == (2, True)
    new = ("--curator", "Ada", "--key", str(key))
    few = add(path, "sewing", *new, sources=SOURCES[:2])
    assert (few.exit_code, "expected exactly 3, got 2" in few.stderr) == (2, True)
    assert not path.exists()
    odd = add(path, "sewing", *new, sources=["book|x"])
    assert (odd.exit_code, "expected --source 'TYPE|NAME|URL|WHY'" in odd.stderr) == (2, True)
    twice = add(begun(path, key), "sewing")
    assert (twice.exit_code, "there is a category 'sewing' already" in twice.stderr) == (1, True)
    nowhere = add(tmp_path / "no" / "a.json", "sewing", *new)
    assert (nowhere.exit_code, "cannot write" in nowhere.stderr) == (1, True)


def test_mistakes_are_told_with_their_places(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", tree(version="1", updated="x"))
    done = run("sources", "validate", str(path))
    assert (done.exit_code, done.stdout) == (2, "")
    assert [line.split(": ")[1] for line in done.stderr.splitlines()] == [
        f"{path}:2:3",
        f"{path}:3:3",
    ]
    told = run("sources", "validate", str(path), "--json")
    assert told.exit_code == 2
    assert [error["key"] for error in json.loads(told.stdout)["errors"]] == ["version", "updated"]
    for command in (["verify", str(path)], ["match", "x", "--registry", str(path)]):
        assert run("sources", *command).exit_code == 2


def test_a_registry_that_is_not_there_is_told_with_a_remedy_that_fits() -> None:
    done = run("sources", "validate", "nofile")
    assert done.exit_code == 2
    assert done.stderr == "trunkline: nofile: there is no such file; check the name\n"


def test_programs_read_json(tmp_path: Path, key: Path) -> None:
    path = begun(tmp_path / "a.json", key)
    good = json.loads(run("sources", "validate", str(path), "--json").stdout)
    assert (good["ok"], good["signed"], good["categories"]) == (True, True, 1)
    verified = json.loads(run("sources", "verify", str(path), "--json").stdout)
    assert verified["log"]["entries"] == 5
    found = json.loads(run("sources", "match", "learn rust", "--json").stdout)
    assert found["match"] == "rust-learning"
    assert found["threshold"] == 0.4


def test_a_signature_by_somebody_else_is_told_apart(tmp_path: Path, key: Path) -> None:
    path = begun(tmp_path / "a.json", key)
    pubkey = load(path).registry.curator.pubkey
    assert run("sources", "verify", str(path), "--by", pubkey).exit_code == 0
    done = run("sources", "verify", str(path), "--by", PUBKEY)
    assert (done.exit_code, "expected to be signed by" in done.stderr) == (1, True)
    theirs = write(tmp_path / "theirs.json", TREE)
    refused = run("sources", "sign", str(theirs), "--key", str(key))
    assert (refused.exit_code, "the curator's key is" in refused.stderr) == (1, True)


def test_a_log_that_was_tampered_with_is_found_out(tmp_path: Path, key: Path) -> None:
    path = begun(tmp_path / "a.json", key)
    log = log_path(path)
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join([lines[0], *lines[2:]]))
    done = run("sources", "verify", str(path))
    assert done.exit_code == 1
    assert f"{log}:2: the entry before it is missing, or was changed" in done.stderr
    again = run("sources", "sign", str(path), "--key", str(key))
    assert (again.exit_code, "keep it elsewhere" in again.stderr) == (1, True)
    log.write_text("".join(lines[:-1]))
    assert run("sources", "verify", str(path)).exit_code == 1
    log.write_bytes(b"\xff")
    assert "not UTF-8" in run("sources", "verify", str(path)).stderr
    log.unlink()
    none = run("sources", "verify", str(path))
    assert (none.exit_code, "there is no change log" in none.stdout) == (0, True)


def test_a_key_that_cannot_be_used_is_said(tmp_path: Path, key: Path) -> None:
    path = begun(tmp_path / "a.json", key)
    key.chmod(0o644)
    done = run("sources", "sign", str(path), "--key", str(key))
    assert (done.exit_code, "chmod 600" in done.stderr) == (2, True)


def test_the_registry_to_sign_must_be_good(tmp_path: Path, key: Path) -> None:
    path = write(tmp_path / "a.json", {})
    done = run("sources", "sign", str(path), "--key", str(key))
    assert (done.exit_code, '"version" is missing; add it' in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("xyzzy plugh foobar", "no match: no category scores 0.4"),
        ("the", "the query has only words that say nothing"),
        ("", "the query is empty"),
    ],
)
def test_what_means_nothing_ends_with_one(query: str, said: str) -> None:
    done = run("sources", "match", query)
    assert (done.exit_code, said in done.stderr) == (1, True)


def test_both_scorings_can_be_tried() -> None:
    classic = run("sources", "match", "my sql is slow")
    best = run("sources", "match", "my sql is slow", "--scoring", "best")
    assert classic.stdout.splitlines()[0].split() == ["score", "category"]
    assert best.stdout.splitlines()[1].split()[1] == "postgresql-performance"
    strict = run("sources", "match", "learn rust", "--threshold", "0.99")
    assert strict.exit_code == 1
