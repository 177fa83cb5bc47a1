"""Topic scores: the reference values, and properties for any topics and queries."""

from difflib import SequenceMatcher

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sources.scored_topics import SCORES, TOPICS
from trunkline.sources.topics import (
    STOP_WORDS,
    EmptyQuery,
    OnlyStopWords,
    ScoredTopic,
    ScoreWeights,
    TopicScore,
    TopicScorer,
    normalise_query,
)

CLASSIC = TopicScorer(TOPICS)

SLUGS = st.from_regex(r"[a-z0-9]{1,6}(-[a-z0-9]{1,6}){0,2}", fullmatch=True)
TEXTS = st.text(max_size=20)
ANY_TOPICS = st.lists(
    st.builds(ScoredTopic, SLUGS, TEXTS, st.lists(TEXTS, max_size=3).map(tuple)),
    max_size=6,
    unique_by=lambda topic: topic.slug,
)
QUERIES = st.text(min_size=1, max_size=30).map(lambda text: f"{text} x")


@pytest.mark.holds("O1.8")
@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("how do I run a bitcoin node", "run bitcoin node"),
        ("don't panic! it's fine.", "dont panic fine"),
        ("  too   many    spaces  ", "many spaces"),
        ("How to setup Bitcoin 2.0 node", "setup bitcoin 20 node"),
        ("snake_case\tand\u2003tabs", "snake_case tabs"),
        ("Cafe\u0301 CAFÉ cafe!\u0301", "café café café"),
        ("हिन्दी सीखें", "हिन्दी सीखें"),
        ("日本語を、学ぶ!", "日本語を学ぶ"),
        ("ΣΊΣΥΦΟΣ", "σίσυφος"),
    ],
)
def test_a_query_is_reduced_to_its_significant_words(query: str, expected: str) -> None:
    assert normalise_query(query) == expected


@pytest.mark.holds("O1.8")
@pytest.mark.parametrize("query", ["", "  \t\n", "?!…", "🦀"])
def test_an_empty_query_is_rejected(query: str) -> None:
    with pytest.raises(EmptyQuery):
        CLASSIC.rank(query)


@pytest.mark.holds("O1.8")
@pytest.mark.parametrize("query", ["the a an", "how to do it", "What IS this?"])
def test_a_query_of_stop_words_is_rejected(query: str) -> None:
    with pytest.raises(OnlyStopWords):
        CLASSIC.rank(query)


def test_stop_words_are_words_that_a_query_can_have() -> None:
    assert len(STOP_WORDS) == 153
    assert all(word.isalpha() and word == word.lower() for word in STOP_WORDS)


@pytest.mark.holds("O1.9", "O1.10", "M14")
@pytest.mark.parametrize(("query", "slug", "score"), SCORES)
def test_scores_are_those_of_the_reference(query: str, slug: str | None, score: float) -> None:
    best = CLASSIC.rank(query)[0]
    assert best.score == pytest.approx(score, abs=1e-4)
    assert slug in {None, best.slug}


def test_the_similarity_of_difflib_would_differ() -> None:
    # Compared with the slug, which the reference names: none of our patterns contribute.
    ratio = SequenceMatcher(None, "password manager", "password management").ratio()
    assert 0.7 * ratio + 0.3 / 2 != pytest.approx(0.7026, abs=1e-2)


@pytest.mark.holds("O1.9")
def test_the_terms_of_the_slug_count_as_substrings_and_the_description_not_at_all() -> None:
    (with_term,) = TopicScorer([ScoredTopic("rust-learning", "")]).rank("trust zzzzzzzzzzzzzzz")
    (without,) = TopicScorer([ScoredTopic("rest-learning", "")]).rank("trust zzzzzzzzzzzzzzz")
    assert with_term.score - without.score >= 0.15


@pytest.mark.holds("O1.9")
@pytest.mark.parametrize("topic", TOPICS, ids=lambda topic: topic.slug)
def test_every_topic_is_best_for_its_own_name_slug_and_patterns(topic: ScoredTopic) -> None:
    for query in (topic.name, topic.slug.replace("-", " "), *topic.patterns):
        assert CLASSIC.rank(query)[0].slug == topic.slug


@pytest.mark.holds("M14")
def test_equal_scores_are_in_the_order_of_slugs() -> None:
    twins = [ScoredTopic("b1", "kind"), ScoredTopic("a1", "kind"), ScoredTopic("c1", "kind")]
    assert [slug for slug, _ in TopicScorer(twins).rank("kind")] == ["a1", "b1", "c1"]


@pytest.mark.holds("M14")
def test_no_topics_give_no_scores() -> None:
    assert TopicScorer([]).rank("anything") == []


def test_an_empty_pattern_matches_nothing() -> None:
    assert TopicScorer([ScoredTopic("a", "b", ("how to do it", ""))]).rank("zz") == [
        TopicScore("a", 0.0)
    ]


@pytest.mark.holds("M14")
@pytest.mark.parametrize(
    ("weights", "why"),
    [
        (ScoreWeights(-0.1, 1.1), "expected a fuzzy weight from 0 to 1, got -0.1"),
        (ScoreWeights(0, 1.1), "expected a keyword weight from 0 to 1, got 1.1"),
        (ScoreWeights(float("nan"), 1), "expected a fuzzy weight from 0 to 1, got nan"),
        (ScoreWeights(0.7, 0.2), "expected weights that add up to 1, got 0.9"),
    ],
)
def test_weights_out_of_range_are_rejected(weights: ScoreWeights, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        TopicScorer([], weights)


def test_weights_may_add_up_to_one_nearly() -> None:
    (found,) = TopicScorer([ScoredTopic("rust", "rust")], ScoreWeights(0.7, 0.309)).rank("rust")
    assert found.score == 1


@given(ANY_TOPICS, QUERIES)
def test_scores_are_within_bounds_and_independent_of_order(
    topics: list[ScoredTopic], query: str
) -> None:
    found = TopicScorer(topics).rank(query)
    assert found == TopicScorer(topics[::-1]).rank(query)
    assert all(0 <= each.score <= 1 for each in found)
    assert found == sorted(found, key=lambda each: (-each.score, each.slug))
    for topic in topics:
        assert TopicScorer([topic]).rank(query)[0] in found


@given(st.text())
def test_normalising_twice_is_normalising_once(text: str) -> None:
    try:
        once = normalise_query(text)
    except (EmptyQuery, OnlyStopWords):
        return
    assert normalise_query(once) == once
