"""How often the right tool is found among those of real servers: the benchmark, as a test."""

import pytest

from bench.finding import labelled, many, quality
from trunkline.mcp.features import FeatureKind
from trunkline.search.tool_index import ToolIndex


@pytest.fixture(scope="module")
def index() -> ToolIndex:
    return many.build(list(labelled.catalog().entries(FeatureKind.TOOL)))


@pytest.mark.holds("I6.5")
@pytest.mark.parametrize("held_out", [False, True])
def test_nine_of_ten_right_tools_are_among_the_first_five(index: ToolIndex, held_out: bool) -> None:
    queries = [query for query in labelled.queries() if query.held_out is held_out]
    assert len(queries) > 100
    assert quality.measure_quality(index, queries).recall >= 0.9


def test_misspelt_queries_find_as_many(index: ToolIndex) -> None:
    queries = [query for query in labelled.queries() if query.misspelt]
    assert quality.measure_quality(index, queries).recall >= 0.9


def test_values_in_queries_do_not_hide_the_right_tool(index: ToolIndex) -> None:
    assert quality.measure_quality(index, labelled.queries("values.txt")).first >= 0.9


def test_three_of_each_server_do_not_hide_the_right_tool() -> None:
    tools = list(labelled.catalog().entries(FeatureKind.TOOL))
    assert many.measure_repeated(tools, labelled.queries(), 3).recall >= 0.9


def test_every_tool_ranks_first_for_its_own_name(index: ToolIndex) -> None:
    for entry in labelled.catalog().entries(FeatureKind.TOOL):
        found = index.find(entry.public_name, 1, quality.anything)
        assert [each.entry.public_name for each in found] == [entry.public_name]


def test_the_tool_lists_name_their_sources() -> None:
    servers = labelled.servers()
    assert len(servers) >= 12
    assert sum(len(server["tools"]) for server in servers) >= 150
    for server in servers:
        assert all(server[key] for key in ("server", "package", "registry", "version", "licence"))
