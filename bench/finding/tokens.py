"""Tokens in the context of a client: the full list, or the search tools.

A token counts as four bytes of compact JSON, the rule of thumb of providers for English. Real
tokenizers differ by up to a fifth, which hardly changes the ratio.
"""

import asyncio
from typing import NamedTuple

from bench.finding.labelled import Query
from trunkline.backends.functions import tool_result
from trunkline.backends.tool_search import SearchTools, ToolFinder, describe_match
from trunkline.gateway.registry import Registry
from trunkline.jsonrpc import to_raw
from trunkline.mcp.versions import V2025_03_26
from trunkline.routing.catalog import CatalogEntry
from trunkline.search.tool_index import ToolIndex

BYTES_PER_TOKEN = 4


class Tokens(NamedTuple):
    """Tokens of each part. Lists are always in the context, answers once per question."""

    full_list: int
    search_list: int
    find_answer: int
    describe_answer: int

    @property
    def one_task(self) -> int:
        """The total for a client that needs one tool and looks up its arguments."""
        return self.search_list + self.find_answer + self.describe_answer

    @property
    def saved(self) -> float:
        return 1 - self.one_task / self.full_list


def tokens(value: object) -> int:
    return round(len(bytes(to_raw(value))) / BYTES_PER_TOKEN)


def measure(index: ToolIndex, tools: list[CatalogEntry], queries: list[Query]) -> Tokens:
    """Count for all tools and the average query; answers as text, which is what models read."""
    answers: list[int] = []
    described: list[int] = []
    for query in queries:
        found = index.find(query.text, 5, lambda _: True)
        answer = {"tools": [describe_match(each) for each in found]}
        answers.append(tokens(tool_result(answer, V2025_03_26)))
        if found:
            described.append(tokens(tool_result(found[0].entry.definition, V2025_03_26)))
    return Tokens(
        tokens({"tools": [tool.definition for tool in tools]}),
        tokens({"tools": asyncio.run(_search_list())}),
        round(sum(answers) / len(answers)),
        round(sum(described) / len(described)),
    )


async def _search_list() -> list[object]:
    search = SearchTools(ToolFinder(Registry()))
    features = (await search.list_features()).features
    await search.aclose()
    return [feature.definition_as(f"search__{feature.key}") for feature in features]
