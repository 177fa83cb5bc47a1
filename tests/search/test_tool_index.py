"""Tool index: tools are found by their definitions, and only changes are read again."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.jsonrpc import Raw, to_raw
from trunkline.mcp.features import FeatureKind
from trunkline.routing.catalog import CatalogEntry
from trunkline.search import tool_index
from trunkline.search.tool_index import (
    MAX_SIGNATURE_LENGTH,
    MAX_SUMMARY_LENGTH,
    MAX_USE_BONUS,
    ToolIndex,
    first_sentence,
    tool_document,
    tool_signature,
    tool_summary,
)


def entry(name: str, backend: str = "b", **members: Any) -> CatalogEntry:
    public = f"{backend}__{name}"
    return CatalogEntry(
        FeatureKind.TOOL, public, backend, name, to_raw({"name": public, **members})
    )


def index(*entries: CatalogEntry) -> ToolIndex:
    made = ToolIndex()
    for _ in made.update(entries):
        pass
    return made


def anything(_: CatalogEntry) -> bool:
    return True


def find(made: ToolIndex, query: str) -> list[str]:
    return [found.entry.public_name for found in made.find(query, 5, anything)]


SCHEMA = {
    "type": "object",
    "properties": {"altitude": {"type": "number", "description": "How high above the sea."}},
}
TEXTS = ["fly", "Aeroplane", "wings", "feathers", "altitude", "sea", "airport"]


@pytest.mark.parametrize("word", TEXTS)
def test_a_tool_is_found_by_all_its_texts(word: str) -> None:
    flying = entry(
        "fly",
        "airport",
        title="Aeroplane",
        description="Use wings. No feathers are needed.",
        inputSchema=SCHEMA,
    )
    assert find(index(flying, entry("swim")), word) == ["airport__fly"]


def test_the_name_counts_more_than_the_description() -> None:
    made = index(entry("a", description="merge"), entry("merge", description="a"))
    assert find(made, "merge things") == ["b__merge", "b__a"]


def test_the_name_of_a_parameter_counts_more_than_its_description() -> None:
    def schema(name: str, description: str) -> dict[str, Any]:
        return {"type": "object", "properties": {name: {"description": description}}}

    described = entry("a", inputSchema=schema("level", "depth"))
    named = entry("b", inputSchema=schema("depth", "level"))
    assert find(index(described, named), "depth") == ["b__b", "b__a"]


def test_a_malformed_parameter_leaves_the_descriptions_of_others() -> None:
    schema = {"properties": {"any": True, "none": {"description": 3}, "x": {"description": "sea"}}}
    assert find(index(entry("a", inputSchema=schema), entry("b")), "sea") == ["b__a"]


def test_a_name_ranks_first_with_or_without_its_prefix() -> None:
    made = index(entry("read_file", "fs"), entry("read_file_twice", "fs", title="read file"))
    assert find(made, "fs__read_file")[0] == find(made, "read_file")[0] == "fs__read_file"


def test_tools_that_are_not_allowed_are_not_found() -> None:
    made = index(entry("a", description="merge"), entry("merge"))
    found = made.find("merge", 5, lambda entry: entry.native_name == "a")
    assert [each.entry.native_name for each in found] == ["a"]


def test_equal_tools_of_several_servers_come_after_other_tools() -> None:
    issues = [entry("open_issue", server, description="Open an issue.") for server in "wxyz"]
    other = entry("issue_notes", "a", description="Comment.")
    same_name = entry("open_issue", "v", description="Report an issue in Jira.")
    made = index(*issues, other, same_name)
    assert find(made, "open issue") == [
        "v__open_issue",
        "w__open_issue",
        "a__issue_notes",
        "x__open_issue",
        "y__open_issue",
    ]
    assert made.find("open issue", 2, anything)[1].copies == (
        "x__open_issue",
        "y__open_issue",
        "z__open_issue",
    )
    assert find(made, "open issue on z")[0] == "z__open_issue"


def test_the_number_of_equal_tools_that_are_read_is_bounded() -> None:
    made = index(*[entry("go", f"s{number:02}") for number in range(40)], entry("gone", "t"))
    assert [found.entry.public_name for found in made.find("go", 2, anything)] == [
        "s00__go",
        "s01__go",
    ]


def find_used(made: ToolIndex, query: str, limit: int = 5, **usage: float) -> list[str]:
    found = made.find(
        query, limit, anything, {f"b__{name}": share for name, share in usage.items()}
    )
    return [match.entry.native_name for match in found]


def issue_tools() -> ToolIndex:
    return index(
        entry("add_issue", description="Open."),
        entry("get_issue", description="Read."),
        entry("notes", description="Text of an issue and other things that take many words."),
        entry("users", description="People."),
    )


def test_a_tool_that_was_used_comes_before_others_that_match_as_well() -> None:
    made = issue_tools()
    assert find_used(made, "issue") == ["add_issue", "get_issue", "notes"]
    assert find_used(made, "issue", get_issue=0.5) == ["get_issue", "add_issue", "notes"]
    assert find_used(made, "issue", get_issue=0.5, add_issue=0.6)[0] == "add_issue"


def test_use_lifts_no_tool_that_matches_much_less_or_not_at_all() -> None:
    made = issue_tools()
    unused = find_used(made, "issue")
    assert find_used(made, "issue", notes=1.0, users=1.0, gone=1.0) == unused


def test_use_lifts_a_tool_into_the_first_ones() -> None:
    assert find_used(issue_tools(), "issue", limit=1, get_issue=0.5) == ["get_issue"]


def test_use_changes_no_score() -> None:
    made = issue_tools()
    before = {match.entry.public_name: match.score for match in made.find("issue", 5, anything)}
    after = made.find("issue", 5, anything, {"b__get_issue": 1.0})
    assert {match.entry.public_name: match.score for match in after} == before


def test_a_name_comes_first_whatever_was_used() -> None:
    made = index(entry("go"), entry("go", "a"), entry("gone", description="Go, go."))
    usage = {"b__gone": 1.0, "b__go": 1.0}
    names = [match.entry.public_name for match in made.find("a__go", 3, anything, usage)]
    assert names[0] == "a__go"
    names = [match.entry.public_name for match in made.find("go", 3, anything, usage)]
    assert names == ["b__go", "b__gone", "a__go"]  # a copy comes last
    assert made.find("go", 3, anything)[0].entry.public_name == "a__go"


def test_of_equal_tools_the_one_that_was_used_is_shown() -> None:
    made = index(*(entry("open_issue", server, description="Open.") for server in "wxyz"))
    (found,) = made.find("open an issue", 1, anything, {"y__open_issue": 0.5})
    assert found.entry.public_name == "y__open_issue"
    assert found.copies == ("w__open_issue", "x__open_issue", "z__open_issue")


@given(
    st.lists(st.sampled_from(TEXTS), min_size=1, max_size=4),
    st.dictionaries(st.sampled_from([f"b__t{n}" for n in range(6)]), st.floats(0, 1)),
)
def test_no_match_comes_before_one_with_a_much_higher_score(
    words: list[str], usage: dict[str, float]
) -> None:
    made = index(*(entry(f"t{n}", description=" ".join(TEXTS[n:])) for n in range(6)))
    scores = [match.score for match in made.find(" ".join(words), 6, anything, usage)]
    for place, score in enumerate(scores):
        assert all(later <= score * (1 + MAX_USE_BONUS) + 1e-9 for later in scores[place:])


@pytest.mark.holds("I6.4")
def test_only_changed_tools_are_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    made = index(*(entry(f"t{i}") for i in range(5)), entry("gone"))
    read: list[str] = []

    def reading(entry: CatalogEntry) -> Any:
        read.append(entry.public_name)
        return tool_document(entry)

    monkeypatch.setattr(tool_index, "tool_document", reading)
    same = [entry(f"t{i}") for i in range(4)]
    steps = list(made.update([*same, entry("t4", title="zebra"), entry("new")]))
    assert read == ["b__t4", "b__new"]
    assert len(steps) == 3
    assert len(made) == 6
    assert (find(made, "zebra"), find(made, "gone")) == (["b__t4"], [])


def test_an_interrupted_update_is_resumed() -> None:
    made = ToolIndex()
    unfinished = made.update([entry("a"), entry("b"), entry("c")])
    next(unfinished)
    for _ in made.update([entry("b"), entry("d")]):
        pass
    assert [find(made, name)[:1] for name in ("a", "b__b", "c", "d")] == [
        [],
        ["b__b"],
        [],
        ["b__d"],
    ]


@pytest.mark.parametrize(
    "definition",
    [
        b"[]",
        b'{"description": 1, "title": [], "inputSchema": 7}',
        b'{"inputSchema": {"properties": []}}',
        b'{"inputSchema": {"properties": {"a": 1}, "required": 2}}',
        b'{"inputSchema": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
)
def test_a_tool_with_any_definition_is_found_by_its_name(definition: bytes) -> None:
    odd = CatalogEntry(FeatureKind.TOOL, "b__odd", "b", "odd", Raw(definition))
    assert find(index(odd), "odd") == ["b__odd"]
    assert tool_signature(odd.definition) in ("", "a?: any")
    assert tool_summary(odd.definition) == ""


def test_the_summary_is_the_first_sentence() -> None:
    assert first_sentence("Do it. Then stop.") == "Do it."
    assert first_sentence("Do it.\nThen stop.") == "Do it."
    assert first_sentence("Do it\n\nThen stop.") == "Do it\n"
    assert first_sentence("Do it") == "Do it"
    assert len(first_sentence("x" * 1000)) == MAX_SUMMARY_LENGTH


def test_the_description_is_one_line_or_the_title() -> None:
    assert tool_summary(to_raw({"description": " Do\n it.  Then"})) == "Do it."
    assert tool_summary(to_raw({"title": "Doing"})) == "Doing"


def test_the_signature_names_required_arguments_first() -> None:
    properties: dict[str, Any] = {
        "head": {"type": "integer"},
        "path": {"type": "string"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "pairs": {"type": "array"},
        "sort": {"enum": ["up", "down", 3]},
        "what": {"anyOf": []},
    }
    schema = {"properties": properties, "required": ["path"]}
    assert tool_signature(to_raw({"inputSchema": schema})) == (
        "path: string, head?: integer, tags?: string[], pairs?: array, sort?: up|down|3, what?: any"
    )


def test_a_long_signature_is_cut() -> None:
    properties: dict[str, Any] = {f"argument_{i}": True for i in range(1000)}
    schema = {"properties": properties}
    assert len(tool_signature(to_raw({"inputSchema": schema}))) == MAX_SIGNATURE_LENGTH + 1


names = st.text(alphabet="abc_", min_size=1, max_size=4)


@pytest.mark.holds("I6.4")
@given(st.lists(st.dictionaries(names, names, max_size=5), max_size=4), names)
def test_an_updated_index_equals_a_new_one(catalogues: list[dict[str, str]], query: str) -> None:
    made = ToolIndex()
    for tools in catalogues:
        for _ in made.update([entry(name, description=text) for name, text in tools.items()]):
            pass
    last = catalogues[-1] if catalogues else {}
    fresh = index(*(entry(name, description=text) for name, text in last.items()))
    assert made.find(query, 9, anything) == fresh.find(query, 9, anything)
