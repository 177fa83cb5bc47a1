"""Files to registries: all rules, all mistakes at once, each with its place."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.jsonrpc.test_raw import JSON
from tests.sources.registries import PUBKEY, TREE, category, signed, tree, write
from tests.sources.test_keys import SIGNER
from trunkline.documents.errors import ConfigErrors
from trunkline.sources.load import embedded, load, parse

RUST = ("categories", "rust-learning")


def mistakes(value: object, file: str = "a.json") -> list[str]:
    text = value if isinstance(value, str) else json.dumps(value, indent=2)
    with pytest.raises(ConfigErrors) as caught:
        parse(text, file)
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
    loaded = load(write(tmp_path / "a.json", TREE))
    assert sorted(loaded.registry.categories) == sorted(TREE["categories"])
    assert (loaded.is_signed, loaded.tree) == (False, TREE)


TOML = f"""
version = "1.0.0"
updated = "2026-11-16"  # the day of the first topic

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


def test_toml_says_the_same() -> None:
    loaded = parse(TOML, "a.toml")
    assert [s.type for s in loaded.registry.categories["rust-learning"].sources] == [
        *("book", "repo", "tool")
    ]


@pytest.mark.holds("O1.7")
def test_what_is_not_json_is_said_with_line_and_column() -> None:
    assert mistakes('{\n  "version": "1.0.0",\n  oops\n}') == [
        "a.json:3:3: not JSON: expecting property name enclosed in double quotes; "
        "check quotes, commas and brackets here"
    ]
    assert mistakes('{"a": 1, // no\n}')[0].startswith("a.json:1:10: not JSON")
    assert mistakes("version = ", "a.toml")[0].startswith("a.toml:1:11: not TOML")
    assert mistakes('{\n  "version": NaN\n}')[0].startswith("a.json:2:14: a number is too long, or")
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
        (("curator", "pubkey"), "y" * 51 + "b", ":6:5: curator.pubkey: no key is written so"),
        (("curator", "name"), "A\nB", ":5:5: curator.name: expected a name: one line of 1 to 200"),
        (("curator", "mail"), "a@b", ":7:5: curator.mail: unknown key; known keys are name, pub"),
        (("categories", "Bad_Slug"), TREE["categories"]["rust-learning"], "expected a slug"),
        ((*RUST, "query_patterns"), ["a", "b"], "query_patterns: expected at least 3, got 2; add"),
        ((*RUST, "sources"), [], "rust-learning.sources: expected exactly 3, got 0; add some"),
        ((*RUST, "sources", 1, "rank"), 1, "rank 1 is that of sources[0] already; give the three"),
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
def test_a_broken_rule_is_named_with_place_reason_and_remedy(
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
        ([endorsement(pubkey="y" * 51 + "b")], "pubkey: no key is written so"),
        ([endorsement(), endorsement(url="https://b.example")], "the same as endorsements[0].pub"),
        ([endorsement(), endorsement(pubkey="0" * 64)], "the same as endorsements[0].url"),
    ],
)
def test_endorsements_have_rules_of_their_own(endorsements: list[Any], expected: str) -> None:
    (found,) = mistakes(tree(endorsements=endorsements))
    assert expected in found


@pytest.mark.holds("O1.7")
def test_all_mistakes_are_told_at_once_from_the_top_down() -> None:
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
def test_a_registry_without_topics_is_a_registry() -> None:
    assert parse(json.dumps(tree(categories={})), "a.json").registry.categories == {}


@pytest.mark.holds("O1.12")
def test_a_signature_is_the_curators_or_the_file_is_refused() -> None:
    good = signed(SIGNER)
    assert parse(json.dumps(good), "a.json").is_signed
    assert "not the curator's signature" in mistakes(good | {"version": "9.9.9"})[0]
    bad = json.dumps(good | {"version": "9.9.9"})
    assert parse(bad, "a.json", verify=False).registry.version == "9.9.9"


def test_the_embedded_registry_has_many_topics_and_is_signed() -> None:
    loaded = embedded()
    assert len(loaded.registry.categories) >= 10
    assert loaded.is_signed
    urls = [s.url for c in loaded.registry.categories.values() for s in c.sources]
    assert len(urls) == len(set(urls)) == 3 * len(loaded.registry.categories)


@given(st.text() | JSON.map(json.dumps))
def test_any_text_gives_a_registry_or_mistakes(text: str) -> None:
    for file in ("a.json", "a.toml"):
        with pytest.raises(ConfigErrors):
            parse(text, file)


KEYS = st.sampled_from(["version", "categories", "sources", "rank", "a-b", "endorsements", "name"])


@given(st.dictionaries(KEYS, st.recursive(JSON, lambda v: st.dictionaries(KEYS, v), max_leaves=4)))
def test_nearly_a_registry_gives_mistakes_and_nothing_else(extra: dict[str, Any]) -> None:
    try:
        parse(json.dumps(tree(categories={"a-b": category("a-b", "A", ("x", "y"))}) | extra), "a")
    except ConfigErrors as wrong:
        assert all("\n" not in str(error) for error in wrong.errors)
    else:
        assert extra.get("categories") == {}
