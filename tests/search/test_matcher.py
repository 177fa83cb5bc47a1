"""Matcher: the best match first, for any order of documents."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trunkline.search.english import is_english
from trunkline.search.matcher import Document, Field, Match, Matcher
from trunkline.search.words import Lexicon, parse_lexicon

BOTH = parse_lexicon("remove erase", {}, "", is_english)
FIELDS = {"name": Field(3.0, 3), "text": Field(1.0, 20)}


def document(key: str, text: str = "", *names: str) -> Document:
    return Document(key, names, {"name": key, "text": text, "ignored": "zebra"})


TOOLS = [
    document("github__create_pull_request", "Open a pull request in a GitHub repository."),
    document("github__list_issues", "List the issues of a repository.", "list_issues"),
    document("fs__read_file", "Return what is in a file.", "read_file"),
    document("fs__delete_file", "Delete a file for good.", "delete_file"),
    document("shots__screenshot", "Take a picture of the screen."),
]


def matcher(documents: list[Document] | None = None, **options: Any) -> Matcher:
    made = Matcher(FIELDS, **options)
    for each in TOOLS if documents is None else documents:
        made.put(each)
    return made


def first(query: str) -> str | None:
    return next((match.key for match in matcher().rank(query)), None)


def test_words_find_documents_that_contain_them() -> None:
    assert first("pull request") == "github__create_pull_request"
    assert first("return contents of a file") == "fs__read_file"


def test_a_word_in_the_name_counts_more_than_one_in_the_text() -> None:
    found = matcher([document("b", "zoo"), document("zoo", "b c")]).rank("zoo lion")
    assert [match.key for match in found] == ["zoo", "b"]


def test_a_word_in_a_short_text_counts_more() -> None:
    found = matcher([document("a", "lion " + "x " * 30), document("b", "lion")]).rank("lions")
    assert [match.key for match in found] == ["b", "a"]


def test_a_synonym_matches_with_a_lower_score() -> None:
    assert first("remove that file") == "fs__delete_file"
    both = matcher([document("erase"), document("remove")]).rank("please remove it all")
    assert [match.key for match in both] == ["remove", "erase"]


def test_two_synonyms_count_once() -> None:
    found = matcher([document("n1", "remove"), document("n2", "erase remove")], lexicon=BOTH)
    once, twice = (match.score for match in found.rank("remove"))
    assert once > twice > 0.5 * once


def test_an_abbreviation_finds_its_long_form() -> None:
    assert first("make a PR") == "github__create_pull_request"
    assert matcher([document("pr", "x"), document("pull", "y")]).rank("a pr")[0].key == "pr"


def test_without_a_lexicon_every_word_only_means_itself() -> None:
    plain = matcher(lexicon=Lexicon({}, {}, frozenset(), is_english))
    assert not plain.rank("erase")
    assert plain.rank("for")[0].key == "fs__delete_file"


def test_misspelt_words_find_the_intended_document() -> None:
    assert first("raed_fiel") == "fs__read_file"
    assert first("creat pul requst") == "github__create_pull_request"
    assert first("isues") == "github__list_issues"


def test_a_prefix_finds_the_whole_word() -> None:
    assert first("screens") == "shots__screenshot"
    assert first("repos") == "github__list_issues"


def test_words_may_be_joined_or_split() -> None:
    assert first("pullrequest") == "github__create_pull_request"
    assert first("createPullRequest") == "github__create_pull_request"
    assert first("screen shot") == "shots__screenshot"
    assert first("GitHub issues") == "github__list_issues"


def test_a_real_word_is_no_misspelling_of_another() -> None:
    disks = [document("disk"), document("usage", "How full something is.")]
    assert matcher(disks).rank("dish") == []
    assert [match.key for match in matcher(disks).rank("dsik")] == ["disk"]


def test_a_real_word_starts_a_compound_but_no_other_word() -> None:
    documents = [document("card"), document("screenshot")]
    assert matcher(documents).rank("car") == []
    assert [match.key for match in matcher(documents).rank("screen")] == ["screenshot"]


def test_a_misspelt_word_is_not_split_into_endings() -> None:
    documents = [document("trends", "Trending topics"), document("tree_end", "The ends of a tree.")]
    assert [match.key for match in matcher(documents).rank("treendings")] == ["trends"]


@pytest.mark.parametrize("compound", ["gitstatus", "treestatus", "statustree"])
def test_a_compound_is_split_before_it_is_corrected(compound: str) -> None:
    documents = [document("git_status"), document("tree_status"), document("stratus")]
    found = matcher(documents).rank(compound)
    assert found[0].key == ("git_status" if "git" in compound else "tree_status")


@pytest.mark.parametrize(
    "value",
    [
        "https://a.example/delete/delete?delete=delete",
        "/delete/delete",
        "./delete/delete",
        "~/delete",
        r"C:\delete\delete",
        '"delete a file"',
        "`delete delete`",
        "'delete a file'",
        "“delete a file”",
    ],
)
def test_words_in_values_count_less_than_other_words(value: str) -> None:
    assert first(f"return {value}") == "fs__read_file"


def test_a_value_alone_is_read_as_words() -> None:
    assert first('"delete a file"') == "fs__delete_file"
    assert first('the "delete a file"') == "fs__delete_file"
    assert first('""') is None


def test_words_in_values_are_neither_guessed_nor_expected() -> None:
    plain = matcher().rank("return")
    assert matcher().rank('return "deletx qzzx the"') == plain
    assert matcher().rank('return "return"') == plain


def test_apostrophes_and_slashes_within_words_are_no_values() -> None:
    assert first("delete the owner's file for good, don't return") == "fs__delete_file"
    assert first("delete/remove a file") == "fs__delete_file"


def test_words_that_are_too_short_or_too_long_are_not_guessed() -> None:
    assert first("zq") is None
    assert first("x" * 41) is None


def test_the_number_of_guessed_words_is_bounded() -> None:
    nonsense = " ".join(f"zqx{number}" for number in range(8))
    assert first(f"isues {nonsense}") == "github__list_issues"
    assert first(f"{nonsense} isues") is None


def test_stop_words_find_nothing() -> None:
    assert first("how is it for the") is None
    assert [match.key for match in matcher().rank("the of a in delete")] == ["fs__delete_file"]
    assert matcher([document("do", "x")]).rank("do") == [Match("do", 1.0)]


def test_an_empty_index_finds_nothing() -> None:
    assert matcher([]).rank("file") == []
    assert matcher().rank("") == []
    assert matcher().rank("…!") == []
    assert matcher().rank("file", limit=0) == []


def test_a_name_ranks_first_and_a_key_before_it() -> None:
    documents = [document("a__go", "", "go"), document("go", "x"), document("b", "go go go")]
    assert matcher(documents).rank("go") == [
        Match("go", 1.0),
        Match("a__go", 0.995),
        *matcher(documents).rank("go")[2:],
    ]
    assert matcher(documents).rank(" A-GO ")[0] == Match("a__go", 0.99)
    assert matcher([document("--", "x")]).rank("--") == [Match("--", 1.0)]


def test_equal_scores_are_ordered_by_key() -> None:
    same = [document(key, "alpha beta") for key in ("n3", "n1", "n2")]
    assert [match.key for match in matcher(same).rank("beta", limit=2)] == ["n1", "n2"]


def test_documents_that_are_not_allowed_take_no_place() -> None:
    many = [document(f"n{i:03}", "alpha") for i in range(100)]
    found = matcher(many).rank("alpha", limit=3, allow=lambda key: key > "n095")
    assert [match.key for match in found] == ["n096", "n097", "n098"]
    assert matcher(many).rank("n001", allow=lambda key: False) == []


def test_replaced_and_removed_documents_are_not_found() -> None:
    index = matcher([document("a", "lion"), document("b", "tiger", "cat")])
    index.put(document("a", "zebra"))
    index.remove("b")
    index.remove("c")
    assert index.rank("lion tiger cat") == []
    assert [match.key for match in index.rank("zebra")] == ["a"]
    assert (len(index), "a" in index, "b" in index) == (1, True, False)


keys = st.text(alphabet="abcAB_-ä ", min_size=1, max_size=6).map(str.strip).filter(bool)
texts = st.lists(st.sampled_from("file files read list get erase gitHub a the issue x".split()))
documents = st.dictionaries(keys, texts.map(" ".join), max_size=12).map(
    lambda found: [document(key, text) for key, text in found.items()]
)
queries = st.one_of(keys, texts.map(" ".join), st.text(max_size=30))


@pytest.mark.holds("I6.1")
@given(documents, queries, st.randoms(use_true_random=False))
def test_the_order_of_documents_makes_no_difference(
    given_: list[Document], query: str, random: Any
) -> None:
    shuffled = random.sample(given_, len(given_))
    assert matcher(given_).rank(query) == matcher(shuffled).rank(query)


@pytest.mark.holds("I6.1")
@given(documents, documents, queries)
def test_removed_documents_make_no_difference(
    given_: list[Document], others: list[Document], query: str
) -> None:
    index = matcher([*others, *given_])
    for key in {each.key for each in others} - {each.key for each in given_}:
        index.remove(key)
    assert index.rank(query) == matcher(given_).rank(query)


@pytest.mark.holds("I6.1")
@given(documents, queries)
def test_scores_are_within_0_and_1_and_descend(given_: list[Document], query: str) -> None:
    scores = [match.score for match in matcher(given_).rank(query)]
    assert all(0 <= score <= 1 for score in scores)
    assert scores == sorted(scores, reverse=True)


@pytest.mark.holds("I6.1")
@given(documents, st.data())
def test_a_key_is_always_first(given_: list[Document], data: st.DataObject) -> None:
    key = data.draw(keys)
    found = matcher([*given_, document(key)]).rank(key)
    assert found[0] == Match(key, 1.0)
    assert all(match.score < 1.0 for match in found[1:])


def test_common_words_are_scored_only_for_documents_that_can_still_be_best() -> None:
    many = [document(f"n{place:02}", "common words") for place in range(50)]
    index = matcher([*many, document("one", "zebra among common words")])
    assert index.rank("common zebra", limit=1) == index.rank("common zebra", limit=1000)[:1]


@settings(max_examples=50)
@given(
    st.lists(texts.map(" ".join), min_size=5, max_size=60),
    queries,
    st.integers(1, 4),
    st.integers(1, 5),
)
def test_a_short_result_is_the_start_of_a_long_one(
    given_: list[str], query: str, limit: int, step: int
) -> None:
    index = matcher([document(f"n{place:02}", text) for place, text in enumerate(given_)])
    allowed = {f"n{place:02}" for place in range(0, len(given_), step)}
    whole = [match for match in index.rank(query, limit=1000) if match.key in allowed]
    assert index.rank(query, limit, allowed.__contains__) == whole[:limit]


def test_it_looks_further_down_if_the_best_are_not_allowed() -> None:
    many = [document(f"n{place:02}", "alpha " * (40 - place)) for place in range(40)]
    ranked = [match.key for match in matcher(many).rank("alpha", limit=40)]
    last = ranked[-1]
    assert [match.key for match in matcher(many).rank("alpha", 1, lambda key: key == last)] == [
        last
    ]
