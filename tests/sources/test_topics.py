"""Finding the topic that a query means, with both scoring methods."""

import msgspec
import pytest

from bench.sources import measure
from tests.sources.registries import TREE
from tests.sources.scored_topics import SCORES
from tests.test_docs import ROOT
from trunkline.backends.builtin import BuiltinSettings
from trunkline.sources.model import SourceRegistry
from trunkline.sources.registry_file import load_embedded
from trunkline.sources.topics import (
    EmptyQuery,
    MatchSettings,
    NoMatch,
    OnlyStopWords,
    ScoreWeights,
    ScoringMethod,
    TopicFinder,
)

CATEGORIES = msgspec.convert(TREE, SourceRegistry).categories
SCORINGS: list[ScoringMethod] = ["classic", "best"]


@pytest.mark.holds("O1.9", "O1.10")
@pytest.mark.parametrize(("query", "slug", "score"), SCORES)
def test_the_classic_scoring_matches_what_reaches_the_threshold(
    query: str, slug: str | None, score: float
) -> None:
    finder = TopicFinder(CATEGORIES, MatchSettings())
    if score >= 0.4:
        found = finder.find(query)
        assert found.slug == slug
        assert found.score == pytest.approx(score, abs=1e-4)
    else:
        with pytest.raises(NoMatch) as none:
            finder.find(query)
        assert none.value.threshold == 0.4
        assert none.value.closest is not None
        assert none.value.closest.score == pytest.approx(score, abs=1e-4)


@pytest.mark.holds("S1.33")
def test_the_default_threshold_and_weights_are_those_of_the_brief() -> None:
    defaults = MatchSettings()
    assert (defaults.scoring, defaults.min_score) == ("classic", 0.4)
    assert (defaults.weights.fuzzy, defaults.weights.keyword) == (0.7, 0.3)
    configured = BuiltinSettings(builtin="sources")
    assert (configured.scoring, configured.threshold) == ("classic", None)
    assert (configured.fuzzy_weight, configured.keyword_weight) == (0.7, 0.3)


@pytest.mark.holds("O1.9", "O1.11")
def test_a_threshold_is_inclusive_and_that_of_the_call_takes_precedence() -> None:
    finder = TopicFinder(CATEGORIES, MatchSettings())
    assert finder.find("learn rust", 0.5).slug == "rust-learning"
    with pytest.raises(NoMatch):
        finder.find("learn rust", 0.99)
    strict = TopicFinder(CATEGORIES, MatchSettings(threshold=0.99))
    with pytest.raises(NoMatch):
        strict.find("learn rust")
    assert strict.find("learn rust", 0).slug == "rust-learning"


def test_weights_are_used_and_checked() -> None:
    only_words = TopicFinder(CATEGORIES, MatchSettings(weights=ScoreWeights(0, 1)))
    assert only_words.find("trust").score == 0.5
    with pytest.raises(ValueError, match="add up to 1"):
        TopicFinder(CATEGORIES, MatchSettings(weights=ScoreWeights(1, 1)))


@pytest.mark.holds("M14")
@pytest.mark.parametrize("scoring", SCORINGS)
def test_a_registry_without_topics_matches_nothing(scoring: ScoringMethod) -> None:
    finder = TopicFinder({}, MatchSettings(scoring=scoring))
    assert finder.rank("rust") == []
    with pytest.raises(NoMatch) as none:
        finder.find("rust", 0)
    assert none.value.closest is None


@pytest.mark.parametrize("scoring", SCORINGS)
def test_an_empty_query_raises_with_either_scoring(scoring: ScoringMethod) -> None:
    finder = TopicFinder(CATEGORIES, MatchSettings(scoring=scoring))
    with pytest.raises(EmptyQuery):
        finder.find("?!")
    with pytest.raises(OnlyStopWords):
        finder.find("how to do it")


@pytest.mark.parametrize("scoring", SCORINGS)
def test_every_topic_is_found_by_its_own_name_slug_and_patterns(scoring: ScoringMethod) -> None:
    categories = load_embedded().registry.categories
    finder = TopicFinder(categories, MatchSettings(scoring=scoring))
    for slug, category in categories.items():
        for query in (slug, category.name, *category.query_patterns):
            assert finder.find(query).slug == slug, query


def test_the_best_scoring_ranks_all_topics_and_knows_words_in_any_order() -> None:
    finder = TopicFinder(CATEGORIES, MatchSettings(scoring="best"))
    ranked = finder.rank("programing in rust, how to learn it")
    assert ranked[0].slug == "rust-learning"
    assert sorted(each.slug for each in ranked) == sorted(CATEGORIES)
    assert ranked[-1].score == 0


def test_the_best_scoring_is_not_worse_on_the_labelled_queries() -> None:
    classic, best = measure("classic"), measure("best")
    assert classic["queries"] == best["queries"] >= 200
    assert best["accuracy_at_1"] >= classic["accuracy_at_1"] + 0.2
    assert best["mrr"] >= classic["mrr"] + 0.2
    assert best["accepted"] >= classic["accepted"]
    assert best["refused"] >= 0.95


@pytest.mark.parametrize("scoring", SCORINGS)
def test_the_manual_has_nearly_the_figures_that_are_measured(scoring: ScoringMethod) -> None:
    found = measure(scoring)
    page = (ROOT / "docs" / "reference" / "sources.md").read_text(encoding="utf-8")
    (row,) = [line for line in page.splitlines() if line.startswith(f"| `{scoring}` |")]
    keys = ("accuracy_at_1", "mrr", "accepted", "refused")
    written = [float(cell) for cell in row.split("|")[2:6]]
    assert written == pytest.approx([found[key] for key in keys], abs=0.03)
