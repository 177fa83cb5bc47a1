"""English: real words are told from misspelt ones."""

from importlib.resources import files

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.search.english import is_english

WORDS = files("trunkline.search").joinpath("english_words.txt").read_text("ascii").split()


@pytest.mark.parametrize("word", ["dish", "disk", "dishes", "trending", WORDS[0], WORDS[-1]])
def test_real_words_are_in_the_list(word: str) -> None:
    assert is_english(word)


@pytest.mark.parametrize(
    "word", ["", "a", "tre", "treendings", "kubectl", "Dish", "\n", "zzzz", "é"]
)
def test_other_words_are_not(word: str) -> None:
    assert not is_english(word)


def test_the_list_is_sorted_and_has_no_word_twice() -> None:
    assert sorted(set(WORDS)) == WORDS


@given(st.one_of(st.sampled_from(WORDS), st.text(max_size=8)))
def test_the_search_agrees_with_the_list(word: str) -> None:
    assert is_english(word) is (word in WORDS)
