"""Registry files: reading them with all mistakes, and writing them."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.json_values import JSON
from tests.sources.registries import PUBKEY, TREE, category, signed, tree, write
from tests.sources.test_signing import SIGNER
from trunkline.documents.errors import ConfigErrors
from trunkline.sources.registry_file import (
    SlugTaken,
    WrongSigningKey,
    add_category,
    create_registry,
    load_embedded,
    load_registry,
    log_path,
    parse_registry,
    read_log,
    sign_registry,
)
from trunkline.sources.signing import InvalidChangeLog, verify_log

RUST = ("categories", "rust-learning")


def mistakes(value: object, file: str = "a.json") -> list[str]:
    text = value if isinstance(value, str) else json.dumps(value, indent=2)
    with pytest.raises(ConfigErrors) as caught:
        parse_registry(text, file)
    return [str(error) for error in caught.value.errors]


def changed(path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    made = tree()
    inside: Any = made
    for key in path[:-1]:
        inside = inside[key]
    inside[path[-1]] = value
    return made


@pytest.mark.holds("O1.7", "M14")
def test_a_good_registry_is_loaded(tmp_path: Path) -> None:
    loaded = load_registry(write(tmp_path / "a.json", TREE))
    assert sorted(loaded.registry.categories) == sorted(TREE["categories"])
    assert (loaded.is_signed, loaded.tree) == (False, TREE)


TOML = f"""
version = "1.0.0"
updated = "2026-11-16"  # the date of the first topic

[curator]
name = "Ada"
pubkey = "{PUBKEY}"

[categories.rust-learning]
name = "Rust"
description = "The language."
query_patterns = ["learn rust", "rust book", "rust course"]
sources = [
    {{ rank = 1, name = "A", url = "https://a.example", type = "book", why = "Good." }},
    {{ rank = 2, name = "B", url = "https://b.example", type = "repo", why = "Good." }},
    {{ rank = 3, name = "C", url = "https://c.example", type = "tool", why = "Good." }},
]
"""


def test_toml_gives_the_same_registry() -> None:
    loaded = parse_registry(TOML, "a.toml")
    assert [s.type for s in loaded.registry.categories["rust-learning"].sources] == [
        *("book", "repo", "tool")
    ]


@pytest.mark.holds("O1.7")
def test_invalid_notation_is_reported_with_line_and_column() -> None:
    assert mistakes('{\n  "version": "1.0.0",\n  oops\n}') == [
        "a.json:3:3: not JSON: expecting property name enclosed in double quotes; "
        "check quotes, commas and brackets here"
    ]
    assert mistakes('{"a": 1, // no\n}')[0].startswith("a.json:1:10: not JSON")
    assert mistakes("version = ", "a.toml")[0].startswith("a.toml:1:11: not TOML")
    assert mistakes('{\n  "version": NaN\n}')[0].startswith("a.json:2:14: a number is too long or")
    assert mistakes('{"a":\n' + "[" * 9000)[0].startswith("a.json:2:9000: nested too deeply")


@pytest.mark.holds("O1.7", "M14")
@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        (("version",), "1.0", ':2:3: version: expected a version of three numbers, such as "1.0.0'),
        (("updated",), "2026-02-30", ":3:3: updated: there is no such day"),
        (("updated",), "today", ':3:3: updated: expected a date, such as "2026-11-16"'),
        (("updated",), 2026, ":3:3: updated: expected text, got a whole number; put it in quotes"),
        (("curator", "pubkey"), "abc", ":6:5: curator.pubkey: expected an Ed25519 public key"),
        (("curator", "pubkey"), "y" * 51 + "b", ":6:5: curator.pubkey: not a public key"),
        (("curator", "name"), "A\nB", ":5:5: curator.name: expected a name: one line of 1 to 200"),
        (("curator", "mail"), "a@b", ":7:5: curator.mail: unknown key; known keys are name, pub"),
        (("categories", "Bad_Slug"), TREE["categories"]["rust-learning"], "expected a slug"),
        ((*RUST, "query_patterns"), ["a", "b"], "query_patterns: expected at least 3, got 2; add"),
        ((*RUST, "sources"), [], "rust-learning.sources: expected exactly 3, got 0; add some"),
        ((*RUST, "sources", 1, "rank"), 1, "sources[0] has rank 1 already; give the three"),
        ((*RUST, "sources", 1, "rank"), 4, "rank: expected at least 1 and at most 3; choose anoth"),
        ((*RUST, "sources", 1, "type"), "books", 'type: expected "api", "article", "book", "cou'),
        ((*RUST, "sources", 1, "url"), "ftp://a", "url: expected a URL that begins with http://"),
        ((*RUST, "sources", 1, "url"), "https://u@a", "url: expected a URL that begins with http"),
        ((*RUST, "sources", 1, "url"), "https://rust-learning.example/1", "the same as categories"),
        ((*RUST, "sources", 1, "why"), " ", "why: expected a sentence or a few: one line of 1 to"),
        ((*RUST, "query_patterns", 2), "Learn  RUST programming", "the same as categories.rust-l"),
        ((*RUST, "name"), "linux hardening", "the same as categories.rust-learning.name; keep on"),
        ((*RUST, "nmae"), "x", 'nmae: unknown key; did you mean "name"?'),
        (("signature",), "0" * 128, "signature: not the curator's signature of what the file say"),
        (("signature",), "x", "signature: expected an Ed25519 signature: 128 digits of 0-9a-f"),
        (("endorsements",), [{"name": "B"}], 'endorsements[0]: "pubkey" is missing; add it'),
    ],
)
def test_a_broken_rule_is_reported_with_position_reason_and_fix(
    path: tuple[Any, ...], value: Any, expected: str
) -> None:
    found = mistakes(changed(path, value))[0]
    assert found.startswith("a.json:")
    assert expected in found
    assert "; " in found


def endorsement(**changes: Any) -> dict[str, Any]:
    return {"pubkey": PUBKEY, "url": "https://a.example/r.json", "since": "2026-01-01"} | changes


@pytest.mark.parametrize(
    ("endorsements", "expected"),
    [
        ([endorsement(url="http://a.example")], "url: expected a URL that begins with https://"),
        ([endorsement(since="2026-13-01")], "since: there is no such day"),
        ([endorsement(pubkey="y" * 51 + "b")], "pubkey: not a public key"),
        ([endorsement(), endorsement(url="https://b.example")], "the same as endorsements[0].pub"),
        ([endorsement(), endorsement(pubkey="0" * 64)], "the same as endorsements[0].url"),
    ],
)
def test_endorsements_have_rules_of_their_own(endorsements: list[Any], expected: str) -> None:
    (found,) = mistakes(tree(endorsements=endorsements))
    assert expected in found


@pytest.mark.holds("O1.7")
def test_all_mistakes_are_reported_at_once_in_order() -> None:
    made = changed((*RUST, "sources", 0, "rank"), 2)
    made |= {"version": "x", "extra": 1}
    del made["categories"]["linux-hardening"]["name"]
    found = mistakes(made)
    assert [line.split(": ")[1] for line in found] == [
        "version",
        "categories.rust-learning.sources[1].rank",
        "categories.linux-hardening",
        "extra",
    ]


def test_a_key_that_is_given_twice_is_refused() -> None:
    text = json.dumps(TREE, indent=2).replace('"version"', '"updated": "2026-01-01",\n"version"', 1)
    (found,) = mistakes(text)
    assert found == "a.json:4:3: updated: given twice, first on line 2; keep one of the two"


@pytest.mark.holds("M14")
def test_a_registry_may_have_no_topics() -> None:
    assert parse_registry(json.dumps(tree(categories={})), "a.json").registry.categories == {}


@pytest.mark.holds("O1.12")
def test_a_signature_is_the_curators_or_the_file_is_refused() -> None:
    good = signed(SIGNER)
    assert parse_registry(json.dumps(good), "a.json").is_signed
    assert "not the curator's signature" in mistakes(good | {"version": "9.9.9"})[0]
    bad = json.dumps(good | {"version": "9.9.9"})
    assert parse_registry(bad, "a.json", verify=False).registry.version == "9.9.9"


def test_the_embedded_registry_has_many_topics_and_is_signed() -> None:
    loaded = load_embedded()
    assert len(loaded.registry.categories) >= 10
    assert loaded.is_signed
    urls = [s.url for c in loaded.registry.categories.values() for s in c.sources]
    assert len(urls) == len(set(urls)) == 3 * len(loaded.registry.categories)


@given(st.text() | JSON.map(json.dumps))
def test_any_text_gives_a_registry_or_mistakes(text: str) -> None:
    for file in ("a.json", "a.toml"):
        with pytest.raises(ConfigErrors):
            parse_registry(text, file)


KEYS = st.sampled_from(["version", "categories", "sources", "rank", "a-b", "endorsements", "name"])


@given(st.dictionaries(KEYS, st.recursive(JSON, lambda v: st.dictionaries(KEYS, v), max_leaves=4)))
def test_an_almost_valid_registry_gives_only_config_errors(extra: dict[str, Any]) -> None:
    try:
        parse_registry(
            json.dumps(tree(categories={"a-b": category("a-b", "A", ("x", "y"))}) | extra), "a"
        )
    except ConfigErrors as wrong:
        assert all("\n" not in str(error) for error in wrong.errors)
    else:
        assert extra.get("categories") == {}


NEW = category("new", 'The "New" \\ Ünï', ("something new", "what is new", "news of the new"))
FILES = ("a.json", "a.toml")


def made(path: Path) -> Path:
    if path.suffix == ".toml":
        text = TOML.replace(load_key(TOML), SIGNER.pubkey)
        path.write_text(text, encoding="utf-8")
    else:
        write(path, tree(curator={"name": "Ada", "pubkey": SIGNER.pubkey}))
    return path


def load_key(text: str) -> str:
    return text.split('pubkey = "')[1][:64]


def entries_of(path: Path) -> list[dict[str, Any]]:
    return read_log(path) or []


@pytest.mark.parametrize("name", FILES)
def test_a_signed_registry_verifies_and_can_be_signed_again(tmp_path: Path, name: str) -> None:
    path = made(tmp_path / name)
    assert read_log(path) is None
    loaded, added = sign_registry(path, SIGNER)
    assert loaded.is_signed
    assert added == len(entries_of(path))
    assert sign_registry(path, SIGNER)[1] == 0
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("Ada", "Ada Lovelace"), encoding="utf-8")
    with pytest.raises(ConfigErrors, match="not the curator's signature"):
        load_registry(path)
    assert sign_registry(path, SIGNER)[1] == 1
    verify_log(entries_of(path), load_registry(path).tree)


def test_comments_in_toml_stay(tmp_path: Path) -> None:
    path = made(tmp_path / "a.toml")
    sign_registry(path, SIGNER)
    add_category(path, "new", NEW)
    text = path.read_text(encoding="utf-8")
    assert "# the date of the first topic" in text
    assert "signature" not in text


@pytest.mark.parametrize("name", FILES)
def test_a_topic_is_added_as_a_new_version_that_is_not_signed(tmp_path: Path, name: str) -> None:
    path = made(tmp_path / name)
    before = sign_registry(path, SIGNER)[0].registry
    loaded = add_category(path, "new", NEW)
    assert load_registry(path).tree == loaded.tree
    assert loaded.tree["categories"]["new"] == NEW
    assert not loaded.is_signed
    assert len(loaded.registry.categories) == len(before.categories) + 1
    major, minor, _ = before.version.split(".")
    assert loaded.registry.version == f"{major}.{int(minor) + 1}.0"
    assert sign_registry(path, SIGNER)[1] == 5


@pytest.mark.parametrize("name", FILES)
def test_an_invalid_registry_is_not_written(tmp_path: Path, name: str) -> None:
    path = made(tmp_path / name)
    before = path.read_bytes()
    with pytest.raises(ConfigErrors, match="expected exactly 3, got 1"):
        add_category(path, "new", NEW | {"sources": NEW["sources"][:1]})
    with pytest.raises(ConfigErrors):
        add_category(path, "New]", NEW)
    with pytest.raises(SlugTaken, match="there is a category 'rust-learning' already"):
        add_category(path, "rust-learning", NEW)
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("name", FILES)
def test_a_new_registry_is_empty(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    create_registry(path, 'Ada "the" Curator', SIGNER.pubkey)
    assert load_registry(path).registry.curator.name == 'Ada "the" Curator'
    assert sign_registry(add_first(path), SIGNER)[1] == 5
    with pytest.raises(FileExistsError):
        create_registry(path, "Eve", SIGNER.pubkey)
    with pytest.raises(ConfigErrors):
        create_registry(tmp_path / f"b-{name}", "", SIGNER.pubkey)


def add_first(path: Path) -> Path:
    add_category(path, "new", NEW)
    return path


def test_the_registry_of_another_key_is_not_signed(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", TREE)
    with pytest.raises(WrongSigningKey, match="use the curator's key, or change"):
        sign_registry(path, SIGNER)
    assert "signature" not in path.read_text()


def test_an_invalid_log_is_not_extended(tmp_path: Path) -> None:
    path = made(tmp_path / "a.json")
    sign_registry(path, SIGNER)
    log = log_path(path)
    log.write_text(log.read_text().replace("Rust", "Dust", 1))
    before = log.read_bytes()
    add_category(path, "new", NEW)
    with pytest.raises(InvalidChangeLog, match="changed since"):
        sign_registry(path, SIGNER)
    assert log.read_bytes() == before
    assert not load_registry(path).is_signed


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_a_new_entry_begins_on_a_line_of_its_own(tmp_path: Path, end: str) -> None:
    path = made(tmp_path / "a.json")
    sign_registry(path, SIGNER)
    log = log_path(path)
    log.write_bytes(log.read_bytes().removesuffix(b"\n") + end.encode())
    add_category(path, "new", NEW)
    assert sign_registry(path, SIGNER)[1] == 5
    verify_log(entries_of(path), load_registry(path).tree)
    assert sign_registry(path, SIGNER)[1] == 0


def test_an_empty_log_file_is_started(tmp_path: Path) -> None:
    path = made(tmp_path / "a.json")
    log_path(path).touch()
    sign_registry(path, SIGNER)
    verify_log(entries_of(path), load_registry(path).tree)


@pytest.mark.parametrize("name", FILES)
def test_a_link_is_followed_to_the_file_and_its_log(tmp_path: Path, name: str) -> None:
    (tmp_path / "there").mkdir()
    path = made(tmp_path / "there" / name)
    link = tmp_path / name
    link.symlink_to(Path("there") / name)
    assert sign_registry(link, SIGNER)[0].is_signed
    add_category(link, "new", NEW)
    assert sign_registry(link, SIGNER)[1] == 5
    assert link.is_symlink()
    assert {each.name for each in tmp_path.iterdir()} == {"there", name}
    assert log_path(link) == log_path(path)
    verify_log(entries_of(path), load_registry(path).tree)


def test_a_broken_link_is_not_signed(tmp_path: Path) -> None:
    lost, circle = tmp_path / "lost.json", tmp_path / "circle.json"
    lost.symlink_to("gone.json")
    circle.symlink_to("circle.json")
    for link in (lost, circle):
        with pytest.raises(ConfigErrors):
            sign_registry(link, SIGNER)
        assert read_log(link) is None


def test_a_file_keeps_its_permissions_and_leaves_nothing_behind(tmp_path: Path) -> None:
    path = made(tmp_path / "a.json")
    path.chmod(0o640)
    before = set(tmp_path.iterdir())
    add_category(path, "new", NEW)
    assert path.stat().st_mode & 0o777 == 0o640
    assert set(tmp_path.iterdir()) == before


def test_windows_line_ends_are_accepted(tmp_path: Path) -> None:
    path = made(tmp_path / "a.toml")
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert sign_registry(path, SIGNER)[0].is_signed
