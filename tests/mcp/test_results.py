"""Whether what a server answered is a result of its method."""

import pytest

from trunkline.jsonrpc import Raw
from trunkline.mcp.methods import CLIENT_REQUESTS
from trunkline.mcp.results import MalformedResult, check_result, has_usual_start


@pytest.mark.parametrize(
    ("method", "result"),
    [
        ("tools/call", b'{"content":[]}'),
        ("tools/call", b'{"content": []}'),
        ("tools/call", b'{"resultType":"complete","content":[]}'),
        ("prompts/get", b'{"messages":[]}'),
        ("resources/read", b'{"contents":[]}'),
        ("completion/complete", b"{}"),
    ],
)
def test_the_start_of_a_usual_result_is_enough(method: str, result: bytes) -> None:
    assert has_usual_start(CLIENT_REQUESTS[method], Raw(result))
    check_result(CLIENT_REQUESTS[method], Raw(result))


@pytest.mark.parametrize(
    ("method", "result"),
    [
        ("tools/call", b'{"isError":true,"content":[]}'),
        ("tools/call", b'{ "content" : [ ] }'),
        ("tools/call", b'{"c\\u006fntent":[]}'),
        ("tools/call", b'{"structuredContent":7}'),
        ("tools/call", b'{"resultType":"input_required","inputRequests":{}}'),
        ("tools/call", b'{"resultType":"of an extension"}'),
        ("tools/call", b'{"_meta":{},"resultType":"complete","content":[]}'),
        ("prompts/get", b'{"description":"x","messages":[]}'),
        ("resources/read", b'{"_meta":{},"contents":[]}'),
    ],
)
def test_other_results_of_the_method_are_accepted(method: str, result: bytes) -> None:
    assert not has_usual_start(CLIENT_REQUESTS[method], Raw(result))
    check_result(CLIENT_REQUESTS[method], Raw(result))


@pytest.mark.parametrize(
    ("method", "result", "reason"),
    [
        ("tools/call", b"null", "expected an object"),
        ("completion/complete", b"[]", "expected an object"),
        ("tools/call", b"{}", "expected an array as 'content'"),
        ("tools/call", b'{"content":{}}', "expected an array as 'content'"),
        ("tools/call", b'{"content":1,"structuredContent":{}}', "expected an array as 'content'"),
        ("tools/call", b'{"resultType":"complete"}', "expected an array as 'content'"),
        ("prompts/get", b'{"structuredContent":{}}', "expected an array as 'messages'"),
        ("resources/read", b'{"content":[]}', "expected an array as 'contents'"),
    ],
)
def test_anything_else_is_malformed(method: str, result: bytes, reason: str) -> None:
    with pytest.raises(MalformedResult, match=f"^the result was malformed: {reason}") as caught:
        check_result(CLIENT_REQUESTS[method], Raw(result))
    assert caught.value.code == -32603
