"""`trunkline sources`: create, sign and verify a registry, from the first key on."""

import json
from pathlib import Path

import pytest
from typer.testing import Result

from tests.cli.samples import run
from tests.sources.registries import PUBKEY, TREE, tree, write
from trunkline.sources.registry_file import load_registry, log_path

TOPIC = [
    *("--name", "Sewing", "--description", "Needle and thread."),
    *("--pattern", "learn sewing", "--pattern", "sew a hem", "--pattern", "sewing machine"),
]
SOURCES = [f"book|Book {n}|https://sew.example/{n}|Good | plain" for n in (1, 2, 3)]


@pytest.fixture
def key(tmp_path: Path) -> Path:
    path = tmp_path / "my.key"
    result = run("sources", "keygen", str(path))
    assert result.exit_code == 0
    return path


def add(path: Path, slug: str, *more: str, sources: list[str] = SOURCES) -> Result:
    source_options = [word for source in sources for word in ("--source", source)]
    return run("sources", "add", str(path), slug, *TOPIC, *source_options, *more)


def create_registry(path: Path, key: Path) -> Path:
    result = add(path, "sewing", "--curator", "Ada", "--key", str(key))
    assert result.exit_code == 0, result.output
    return path


def test_keygen_creates_a_key_once_and_never_prints_it(tmp_path: Path) -> None:
    path = tmp_path / "k"
    result = run("sources", "keygen", str(path))
    assert len(result.stdout.strip()) == 64
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.read_text().splitlines()[1] not in result.output
    again = run("sources", "keygen", str(path))
    assert again.exit_code == 1
    assert "already exists" in again.stderr
    nowhere = run("sources", "keygen", str(tmp_path / "no" / "k"))
    assert (nowhere.exit_code, "cannot write" in nowhere.stderr) == (1, True)


@pytest.mark.parametrize("name", ["mine.json", "mine.toml"])
def test_a_new_registry_can_be_verified_validated_and_matched(
    tmp_path: Path, key: Path, name: str
) -> None:
    path = create_registry(tmp_path / name, key)
    assert load_registry(path).is_signed
    verified = run("sources", "verify", str(path))
    assert verified.exit_code == 0, verified.output
    assert "5 valid entries" in verified.stdout
    good = run("sources", "validate", str(path))
    assert good.stdout == f"{path}: valid, 1 topic, signed\n"
    found = run("sources", "match", "learn to sew", "--registry", str(path))
    assert (found.exit_code, "sewing" in found.stdout) == (0, True)


def test_an_edited_registry_is_validated_and_matched_with_a_warning(
    tmp_path: Path, key: Path
) -> None:
    path = create_registry(tmp_path / "a.json", key)
    path.write_text(path.read_text().replace("sew", "mend").replace("Sew", "Mend"))
    warning = f"sign it again: trunkline sources sign {path}\n"
    checked = run("sources", "validate", str(path))
    assert (checked.exit_code, checked.stdout) == (0, f"{path}: valid, 1 topic, not signed\n")
    assert checked.stderr.endswith(warning)
    found = run("sources", "match", "learn to mend", "--registry", str(path))
    assert (found.exit_code, "mending" in found.stdout) == (0, True)
    assert found.stderr.endswith(warning)
    report = json.loads(run("sources", "validate", str(path), "--json").stdout)
    assert (report["ok"], report["signed"]) == (True, False)
    # Only its curator may use it: `verify` and servers refuse it.
    assert run("sources", "verify", str(path)).exit_code == 2
    assert "warning" not in run("sources", "match", "learn rust").stderr


def test_a_topic_added_without_a_key_is_unsigned_until_sign_runs(tmp_path: Path, key: Path) -> None:
    path = create_registry(tmp_path / "a.json", key)
    path.write_text(path.read_text().replace("sew", "mend").replace("Sew", "Mend"))
    assert run("sources", "verify", str(path)).exit_code == 2
    result = add(path, "sewing")
    assert (result.exit_code, "not signed" in result.stdout) == (0, True)
    unsigned = run("sources", "verify", str(path))
    assert (unsigned.exit_code, "not signed" in unsigned.stderr) == (1, True)
    signed = run("sources", "sign", str(path), "--key", str(key))
    assert signed.exit_code == 0, signed.output
    assert "entries added" in signed.stderr
    assert run("sources", "verify", str(path)).exit_code == 0


def test_add_refuses_invalid_topics(tmp_path: Path, key: Path) -> None:
    path = tmp_path / "a.json"
    for more in ((), ("--curator", "Ada"), ("--key", str(key))):
        result = add(path, "sewing", *more)
        assert (result.exit_code, "to create it, add --curator" in result.stderr) == (2, True)
    new = ("--curator", "Ada", "--key", str(key))
    few = add(path, "sewing", *new, sources=SOURCES[:2])
    assert (few.exit_code, "expected exactly 3, got 2" in few.stderr) == (2, True)
    assert not path.exists()
    odd = add(path, "sewing", *new, sources=["book|x"])
    assert (odd.exit_code, "expected --source 'TYPE|NAME|URL|WHY'" in odd.stderr) == (2, True)
    twice = add(create_registry(path, key), "sewing")
    assert (twice.exit_code, "there is a category 'sewing' already" in twice.stderr) == (1, True)
    nowhere = add(tmp_path / "no" / "a.json", "sewing", *new)
    assert (nowhere.exit_code, "cannot write" in nowhere.stderr) == (1, True)


def test_validation_errors_are_reported_with_line_and_column(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", tree(version="1", updated="x"))
    result = run("sources", "validate", str(path))
    assert (result.exit_code, result.stdout) == (2, "")
    assert [line.split(": ")[1] for line in result.stderr.splitlines()] == [
        f"{path}:2:3",
        f"{path}:3:3",
    ]
    as_json = run("sources", "validate", str(path), "--json")
    assert as_json.exit_code == 2
    assert [error["key"] for error in json.loads(as_json.stdout)["errors"]] == [
        "version",
        "updated",
    ]
    for command in (["verify", str(path)], ["match", "x", "--registry", str(path)]):
        assert run("sources", *command).exit_code == 2


def test_a_missing_registry_is_reported() -> None:
    result = run("sources", "validate", "nofile")
    assert result.exit_code == 2
    assert result.stderr == "trunkline: nofile: there is no such file; check the name\n"


def test_sources_commands_print_json(tmp_path: Path, key: Path) -> None:
    path = create_registry(tmp_path / "a.json", key)
    good = json.loads(run("sources", "validate", str(path), "--json").stdout)
    assert (good["ok"], good["signed"], good["categories"]) == (True, True, 1)
    verified = json.loads(run("sources", "verify", str(path), "--json").stdout)
    assert verified["log"]["entries"] == 5
    found = json.loads(run("sources", "match", "learn rust", "--json").stdout)
    assert found["match"] == "rust-learning"
    assert found["threshold"] == 0.4


def test_a_signature_of_another_curator_is_refused(tmp_path: Path, key: Path) -> None:
    path = create_registry(tmp_path / "a.json", key)
    pubkey = load_registry(path).registry.curator.pubkey
    assert run("sources", "verify", str(path), "--by", pubkey).exit_code == 0
    result = run("sources", "verify", str(path), "--by", PUBKEY)
    assert (result.exit_code, "expected to be signed by" in result.stderr) == (1, True)
    other_registry = write(tmp_path / "theirs.json", TREE)
    refused = run("sources", "sign", str(other_registry), "--key", str(key))
    assert (refused.exit_code, "the curator's key is" in refused.stderr) == (1, True)


def test_verify_detects_a_tampered_change_log(tmp_path: Path, key: Path) -> None:
    path = create_registry(tmp_path / "a.json", key)
    log = log_path(path)
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join([lines[0], *lines[2:]]))
    result = run("sources", "verify", str(path))
    assert result.exit_code == 1
    assert f"{log}:2: the entry before it is missing, or was changed" in result.stderr
    again = run("sources", "sign", str(path), "--key", str(key))
    assert (again.exit_code, "move it away" in again.stderr) == (1, True)
    log.write_text("".join(lines[:-1]))
    assert run("sources", "verify", str(path)).exit_code == 1
    log.write_bytes(b"\xff")
    assert "not UTF-8" in run("sources", "verify", str(path)).stderr
    log.unlink()
    none = run("sources", "verify", str(path))
    assert (none.exit_code, "there is no change log" in none.stdout) == (0, True)


def test_a_key_file_with_unsafe_permissions_is_refused(tmp_path: Path, key: Path) -> None:
    path = create_registry(tmp_path / "a.json", key)
    key.chmod(0o644)
    result = run("sources", "sign", str(path), "--key", str(key))
    assert (result.exit_code, "chmod 600" in result.stderr) == (2, True)


def test_sign_refuses_an_invalid_registry(tmp_path: Path, key: Path) -> None:
    path = write(tmp_path / "a.json", {})
    result = run("sources", "sign", str(path), "--key", str(key))
    assert (result.exit_code, '"version" is missing; add it' in result.stderr) == (2, True)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("xyzzy plugh foobar", "no match: no category scores 0.4"),
        ("the", "the query has only stop words"),
        ("", "the query is empty"),
    ],
)
def test_a_query_without_a_match_exits_with_one(query: str, expected: str) -> None:
    result = run("sources", "match", query)
    assert (result.exit_code, expected in result.stderr) == (1, True)


def test_match_supports_both_scorings() -> None:
    classic = run("sources", "match", "my sql is slow")
    best = run("sources", "match", "my sql is slow", "--scoring", "best")
    assert classic.stdout.splitlines()[0].split() == ["score", "category"]
    assert best.stdout.splitlines()[1].split()[1] == "postgresql-performance"
    strict = run("sources", "match", "learn rust", "--threshold", "0.99")
    assert strict.exit_code == 1
