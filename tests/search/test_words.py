"""Words: equal for every notation."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.search.english import is_english
from trunkline.search.words import (
    ENGLISH_LEXICON,
    MAX_TEXT,
    MAX_WORD,
    WordCache,
    fold,
    parse_lexicon,
    split_values,
    split_words,
    stem,
    stems,
)


def test_spaces_underscores_hyphens_dots_and_capitals_separate_words() -> None:
    written = ["create pull request", "create_pull_request", "create-pull.request"]
    assert {fold(text) for text in [*written, "createPullRequest"]} == {"create pull request"}


def test_camel_case_parts_form_one_word() -> None:
    assert split_words("GitHub repo") == [("git", "hub"), ("repo",)]
    assert split_words("HTTPServer") == [("http", "server")]
    assert split_words("ΑβγΔε") == [("αβγ", "δε")]


def test_digits_stay_with_their_word() -> None:
    assert split_words("base64 S3 v2") == [("base64",), ("s3",), ("v2",)]


def test_accents_and_ligatures_make_no_difference() -> None:
    assert fold("Éléphant ﬁle") == fold("elephant file") == "elephant file"
    assert fold("Straße") == "strasse"


def test_an_apostrophe_separates_nothing() -> None:
    assert fold("don't") == fold("don’t") == "dont"
    assert fold("'quoted'") == "quoted"
    assert fold(unicodedata.normalize("NFD", "l'Ù'0")) == fold("l'Ù'0") == "l u0"


def test_text_without_spaces_becomes_bigrams() -> None:
    assert split_words("搜索文件") == [("搜索",), ("索文",), ("文件",)]
    assert split_words("Äpi文Äx") == [("api",), ("文",), ("ax",)]
    assert split_words("文é") == [("文",), ("e",)]


def test_vowel_signs_of_other_scripts_stay() -> None:
    assert split_words("नमस्ते") == [("नमस्ते",)]


def test_a_long_text_is_read_up_to_the_limit() -> None:
    assert len(split_words("ab " * MAX_TEXT)) == MAX_TEXT // 3 + 1


def test_overlong_words_are_split_or_cut() -> None:
    assert [len(parts[0]) for parts in split_words("x" * 100)] == [MAX_WORD, 36]
    assert [len(parts[0]) for parts in split_words("ж" * 100)] == [MAX_WORD]


def test_the_forms_of_a_word_have_one_stem() -> None:
    assert {stem(w) for w in "create creates created creating creation".split()} == {"creat"}
    assert {stem(w) for w in "query queries querying".split()} == {"query"}
    assert {stem(w) for w in "run runs running".split()} == {"run"}
    assert {stem(w) for w in "box boxes".split()} == {"box"}
    assert {stem(w) for w in "call calls calling called".split()} == {"call"}


def test_a_camel_case_word_has_the_stem_of_the_whole_as_well() -> None:
    assert stems("GitHub issues") == ["git", "hub", "github", "issu"]
    assert stems("Größe ΑβΓδ") == ["gross", "αβ", "γδ", "αβγδ"]


def test_text_that_only_looks_like_an_ending_stays() -> None:
    for word in ("status", "class", "this", "s3s", "bring", "löschens", "add", "bus"):
        assert stem(word) == word


def test_the_word_cache_is_bounded() -> None:
    remembered = WordCache(stem, max_words=3)
    long = "x" * 30
    for word in ("one", "two", "two", "three", "four", long, "搜索", "one"):
        assert remembered[word] == stem(word)
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
def test_folding_is_idempotent(words: list[str]) -> None:
    assert fold(fold("_".join(words))) == fold("-".join(words)) == " ".join(words)


def test_words_of_a_group_are_synonyms_of_each_other() -> None:
    lexicon = parse_lexicon("delete remove erase", {}, "", is_english)
    assert lexicon.synonyms[stem("remove")] == (stem("delete"), stem("erase"))
    assert set(lexicon.synonyms) == {stem("delete"), stem("remove"), stem("erase")}


def test_an_abbreviation_of_one_word_is_a_synonym() -> None:
    lexicon = parse_lexicon("", {"repo": "repository"}, "", is_english)
    assert lexicon.synonyms == {"repo": ("repository",), "repository": ("repo",)}


def test_an_abbreviation_of_several_words_is_a_phrase() -> None:
    lexicon = parse_lexicon("", {"pr": "pull request"}, "the", is_english)
    assert lexicon.phrases == {"pr": ("pull", "request")}
    assert lexicon.synonyms == {}
    assert lexicon.stop_words == {"the"}


def test_no_word_is_its_own_synonym() -> None:
    assert all(word not in others for word, others in ENGLISH_LEXICON.synonyms.items())


def test_synonyms_are_symmetric() -> None:
    for word, others in ENGLISH_LEXICON.synonyms.items():
        assert all(word in ENGLISH_LEXICON.synonyms[other] for other in others)


@pytest.mark.parametrize(
    ("text", "plain", "values"),
    [
        ("read the owner's file", "read the owner's file", ""),
        ('say "hello you" twice', "say   twice", '"hello you"'),
        ("get https://a.example/b now", "get   now", "https://a.example/b"),
        ("and/or /etc/hosts", "and/or  ", "/etc/hosts"),
    ],
)
def test_values_are_separated_from_words(text: str, plain: str, values: str) -> None:
    assert split_values(text) == (plain, values)
