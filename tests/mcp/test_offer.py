"""What servers list: read one by one, kept to the byte."""

import pytest

from trunkline.jsonrpc import Raw, from_raw
from trunkline.mcp.offer import MAX_KEY, Kind, Offer, read_page


def test_each_kind_knows_its_method_its_key_and_its_capability() -> None:
    assert [(kind.method, kind.key, kind.capability) for kind in Kind] == [
        ("tools/list", "name", "tools"),
        ("prompts/list", "name", "prompts"),
        ("resources/list", "uri", "resources"),
        ("resources/templates/list", "uriTemplate", "resources"),
    ]


def test_a_page_is_read_to_the_byte() -> None:
    page = read_page(
        Kind.TOOL,
        Raw(
            b'{"tools":[{"name":"a","inputSchema":{"type": "object"},"x":1.0},'
            b'{"inputSchema":{ "type":"object"},"name":"b"}],"nextCursor":"","_meta":{}}'
        ),
    )
    assert [(offer.key, bytes(offer.definition)) for offer in page.offers] == [
        ("a", b'{"name":"a","inputSchema":{"type": "object"},"x":1.0}'),
        ("b", b'{"inputSchema":{ "type":"object"},"name":"b"}'),
    ]
    assert page.next_cursor == ""
    assert page.refused == ()
    assert read_page(Kind.PROMPT, Raw(b'{"prompts":[],"nextCursor":null}')).next_cursor is None


@pytest.mark.holds("T96")
def test_a_tool_takes_an_object_whatever_it_says() -> None:
    tools = b'{"tools":[{"name":"a"},{"name":"b","inputSchema":{"properties":{"x": {}}}}]}'
    page = read_page(Kind.TOOL, Raw(tools))
    assert [from_raw(offer.definition) for offer in page.offers] == [
        {"name": "a", "inputSchema": {"type": "object"}},
        {"name": "b", "inputSchema": {"type": "object", "properties": {"x": {}}}},
    ]
    prompt = read_page(Kind.PROMPT, Raw(b'{"prompts":[{"name":"a"}]}')).offers[0]
    assert bytes(prompt.definition) == b'{"name":"a"}'


def test_what_no_client_can_read_is_left_out_and_said_to_be() -> None:
    page = read_page(Kind.TOOL, Raw(b'{"tools":[{"name":""},{"name":"a","title":5,"icons":null}]}'))
    assert [from_raw(offer.definition) for offer in page.offers] == [
        {"name": "a", "inputSchema": {"type": "object"}}
    ]
    assert page.refused == (
        "tools[0]: expected a string as 'name', and not an empty one",
        "tools[1].title: not as MCP has it",
    )


def test_nobody_is_offered_a_task_though_a_tool_insists_on_one() -> None:
    page = read_page(
        Kind.TOOL,
        Raw(
            b'{"tools":[{"name":"a","inputSchema":{"type":"object"},"execution":{"taskSupport":'
            b'"required"}},{"name":"b","inputSchema":{"type":"object"},"execution":{}}]}'
        ),
    )
    assert [(offer.needs_task, bytes(offer.definition)) for offer in page.offers] == [
        (True, b'{"name":"a","inputSchema":{"type":"object"}}'),
        (False, b'{"name":"b","inputSchema":{"type":"object"}}'),
    ]


def test_one_bad_definition_costs_that_one_only() -> None:
    long = b'"' + b"n" * (MAX_KEY + 1) + b'"'
    page = read_page(
        Kind.RESOURCE,
        Raw(
            b'{"resources":[{"uri":"a:"},5,{"name":"x"},{"uri":""},{"uri":7},{"uri":"b:","uri":"c:"},'
            b'{"uri":' + long + b'},{"uri":"d:"}]}'
        ),
    )
    assert [offer.key for offer in page.offers] == ["a:", "d:"]
    assert [reason.partition(":")[0] for reason in page.refused] == [
        f"resources[{n}]" for n in range(1, 7)
    ]


@pytest.mark.parametrize("result", [b"{}", b"[]", b'{"tools":{}}', b'{"tools":[],"nextCursor":5}'])
def test_what_is_no_list_is_refused(result: bytes) -> None:
    with pytest.raises(ValueError, match=r"[Ee]xpected"):
        read_page(Kind.TOOL, Raw(result))


def test_an_offer_goes_under_another_name_and_nothing_else_changes() -> None:
    offer = Offer(Kind.TOOL, "a", Raw(b'{"x":1.0,"name":"a"}'))
    assert bytes(offer.under("p__a")) == b'{"x":1.0,"name":"p__a"}'
    assert offer.under("a") is offer.definition
