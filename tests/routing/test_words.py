"""Words: the same out of every notation."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.routing import words as module
from trunkline.routing.words import MAX_TEXT, MAX_WORD, fold, split_words, stem, stems


def test_spaces_underscores_hyphens_dots_and_capitals_all_part_words() -> None:
    written = ["create pull request", "create_pull_request", "create-pull.request"]
    assert {fold(text) for text in [*written, "createPullRequest"]} == {"create pull request"}


def test_what_capitals_part_is_one_written_word() -> None:
    assert split_words("GitHub repo") == [("git", "hub"), ("repo",)]
    assert split_words("HTTPServer") == [("http", "server")]
    assert split_words("ΑβγΔε") == [("αβγ", "δε")]


def test_digits_stay_with_their_word() -> None:
    assert split_words("base64 S3 v2") == [("base64",), ("s3",), ("v2",)]


def test_accents_and_ligatures_make_no_difference() -> None:
    assert fold("Éléphant ﬁle") == fold("elephant file") == "elephant file"
    assert fold("Straße") == "strasse"


def test_an_apostrophe_parts_nothing() -> None:
    assert fold("don't") == fold("don’t") == "dont"
    assert fold("'quoted'") == "quoted"
    assert fold(unicodedata.normalize("NFD", "l'Ù'0")) == fold("l'Ù'0") == "l u0"


def test_what_is_written_without_spaces_comes_as_neighbours() -> None:
    assert split_words("搜索文件") == [("搜索",), ("索文",), ("文件",)]
    assert split_words("Äpi文Äx") == [("api",), ("文",), ("ax",)]
    assert split_words("文é") == [("文",), ("e",)]


def test_vowel_signs_of_other_scripts_stay() -> None:
    assert split_words("नमस्ते") == [("नमस्ते",)]


def test_a_long_text_is_read_only_as_far_as_that() -> None:
    assert len(split_words("ab " * MAX_TEXT)) == MAX_TEXT // 3 + 1


def test_what_is_too_long_for_a_word_falls_into_pieces_or_is_cut() -> None:
    assert [len(parts[0]) for parts in split_words("x" * 100)] == [MAX_WORD, 36]
    assert [len(parts[0]) for parts in split_words("ж" * 100)] == [MAX_WORD]


def test_the_forms_of_a_word_have_one_stem() -> None:
    assert {stem(w) for w in "create creates created creating creation".split()} == {"creat"}
    assert {stem(w) for w in "query queries querying".split()} == {"query"}
    assert {stem(w) for w in "run runs running".split()} == {"run"}
    assert {stem(w) for w in "box boxes".split()} == {"box"}
    assert {stem(w) for w in "call calls calling called".split()} == {"call"}


def test_a_word_that_capitals_part_has_the_stem_of_the_whole_as_well() -> None:
    assert stems("GitHub issues") == ["git", "hub", "github", "issu"]
    assert stems("Größe ΑβΓδ") == ["gross", "αβ", "γδ", "αβγδ"]


def test_what_only_looks_like_an_ending_stays() -> None:
    for word in ("status", "class", "this", "s3s", "bring", "löschens", "add", "bus"):
        assert stem(word) == word


def test_few_words_are_remembered_and_no_long_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_REMEMBERED", 3)
    remembered: dict[str, list[str]] = vars(module)["_STEMS"]
    remembered.clear()
    long = "x" * 30
    for word in ("one", "two", "two", "three", "four", long, "搜索", "one"):
        assert stems(word) == [stem(word)]
        assert len(remembered) <= 3
    assert list(remembered) == ["four", "one"]


@given(st.text())
def test_words_are_folded_and_never_empty(text: str) -> None:
    for parts in split_words(text):
        assert parts
        assert all(parts)


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=50))
def test_composed_or_not_a_text_has_the_same_words(text: str) -> None:
    composed, apart = unicodedata.normalize("NFC", text), unicodedata.normalize("NFD", text)
    assert split_words(composed) == split_words(apart)


@given(st.lists(st.text(alphabet="abcxyz", min_size=1), max_size=5))
def test_what_was_folded_folds_to_itself(words: list[str]) -> None:
    assert fold(fold("_".join(words))) == fold("-".join(words)) == " ".join(words)
