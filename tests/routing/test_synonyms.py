"""Synonyms: what may stand for what."""

from trunkline.routing.synonyms import ENGLISH, read_lexicon
from trunkline.routing.words import stem


def test_every_word_of_a_group_may_stand_for_every_other() -> None:
    lexicon = read_lexicon("delete remove erase", {}, "")
    assert lexicon.alike[stem("remove")] == (stem("delete"), stem("erase"))
    assert set(lexicon.alike) == {stem("delete"), stem("remove"), stem("erase")}


def test_an_abbreviation_of_one_word_goes_both_ways() -> None:
    lexicon = read_lexicon("", {"repo": "repository"}, "")
    assert lexicon.alike == {"repo": ("repository",), "repository": ("repo",)}


def test_an_abbreviation_of_several_words_is_a_phrase() -> None:
    lexicon = read_lexicon("", {"pr": "pull request"}, "the")
    assert lexicon.phrases == {"pr": ("pull", "request")}
    assert lexicon.alike == {}
    assert lexicon.idle == {"the"}


def test_no_word_is_like_itself() -> None:
    assert all(word not in others for word, others in ENGLISH.alike.items())


def test_likeness_goes_both_ways() -> None:
    for word, others in ENGLISH.alike.items():
        assert all(word in ENGLISH.alike[other] for other in others)
