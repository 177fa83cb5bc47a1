"""What a token must say."""

import json
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.auth.issuer import AUDIENCE, ISSUER, NOW, claims
from tests.jsonrpc.test_raw import JSON
from trunkline.auth.claims import MAX_NAME, MAX_ROLES, MAX_SCOPES, Expected, token_id
from trunkline.auth.proof import Proof, Unproven

EXPECTED = Expected(issuer=ISSUER, audiences=frozenset((AUDIENCE, "other")))


def judge(expected: Expected = EXPECTED, now: float = NOW, **changes: Any) -> Proof:
    return expected.judge(json.dumps(claims(**changes)).encode(), now)


def refused(expected: Expected = EXPECTED, now: float = NOW, **changes: Any) -> str:
    with pytest.raises(Unproven) as caught:
        judge(expected, now, **changes)
    return caught.value.why


@pytest.mark.holds("O0.8", "M10")
def test_a_good_token_proves_who_it_is() -> None:
    proof = judge(scope="a b", scp=["c"])
    assert proof.principal.id == "jwt:https://id.example|ada"
    assert proof.principal.subject == "ada"
    assert proof.principal.roles == ("dev",)
    assert proof.principal.scopes == {"a", "b", "c"}
    assert proof.until == NOW + 3600 + 30


@pytest.mark.holds("O0.8")
@pytest.mark.parametrize("claim", ["iss", "aud", "exp", "sub"])
def test_what_must_be_there_is_missed(claim: str) -> None:
    missing: dict[str, Any] = {claim: None}
    assert refused(**missing)


@pytest.mark.parametrize("issuer", ["https://id.example/", "HTTPS://ID.EXAMPLE", "", 1, [ISSUER]])
def test_an_issuer_is_compared_to_the_letter(issuer: Any) -> None:
    assert refused(iss=issuer) == "the token is from another issuer"


@pytest.mark.parametrize("audience", [AUDIENCE, [AUDIENCE], ["x", AUDIENCE], "other"])
def test_an_audience_may_be_one_or_several(audience: Any) -> None:
    assert judge(aud=audience).principal.subject == "ada"


@pytest.mark.parametrize(
    "audience", ["", "Trunkline", "trunkline ", [], ["x"], [AUDIENCE, 1], {AUDIENCE: 1}, 7, True]
)
def test_a_token_for_others_is_not_for_us(audience: Any) -> None:
    assert refused(aud=audience) == "the token is for another audience"


def test_clocks_may_differ_by_so_much_and_no_more() -> None:
    end = NOW + 3600
    assert judge(now=end + 29.9)
    assert refused(now=end + 30) == "the token has expired"
    assert judge(nbf=int(NOW) + 30, iat=int(NOW) + 30)
    assert refused(nbf=int(NOW) + 31) == "the token is not valid yet (nbf)"
    assert refused(iat=int(NOW) + 31) == "the token is not valid yet (iat)"
    exact = Expected(issuer=ISSUER, audiences=frozenset((AUDIENCE,)), skew=0)
    assert refused(exact, now=end) == "the token has expired"


@pytest.mark.parametrize("name", ["exp", "nbf", "iat"])
@pytest.mark.parametrize("value", ["1800003600", True, [], -1, 2**53, 1e300])
def test_a_time_is_a_number_of_seconds(name: str, value: Any) -> None:
    wrong: dict[str, Any] = {name: value}
    assert refused(**wrong) == f"expected seconds since 1970 as {name}"


@pytest.mark.parametrize("subject", ["", " ", "a\nb", "a\x1b[31m", "x" * (MAX_NAME + 1), 7, ["a"]])
def test_a_subject_can_be_written_down(subject: Any) -> None:
    assert refused(sub=subject).startswith("expected a subject (sub)")


@pytest.mark.parametrize(
    ("role", "roles"), [("dev", ("dev",)), (["a", "b", "a"], ("a", "b")), (None, ())]
)
def test_roles_are_one_or_several_or_none(role: Any, roles: tuple[str, ...]) -> None:
    assert judge(role=role).principal.roles == roles


@pytest.mark.holds("O0.8")
@pytest.mark.parametrize("role", ["", [], [""], ["a", 1], {"a": 1}, 7, ["r"] * 0, "a\nb"])
def test_a_role_that_is_none_is_refused(role: Any) -> None:
    assert "expected a role" in refused(role=role)


def test_roles_and_scopes_are_bounded() -> None:
    assert "expected a role" in refused(role=[f"r{n}" for n in range(MAX_ROLES + 1)])
    assert "scopes" in refused(scope=" ".join(f"s{n}" for n in range(MAX_SCOPES + 1)))


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("realm_access.roles", {"realm_access": {"roles": ["dev"]}}),
        ("https://x.example/roles", {"https://x.example/roles": "dev"}),
        ("a.b", {"a.b": "dev", "a": {"b": "other"}}),
    ],
)
def test_the_claim_of_the_roles_may_be_anywhere(name: str, more: dict[str, Any]) -> None:
    expected = Expected(issuer=ISSUER, audiences=frozenset((AUDIENCE,)), role_claim=name)
    assert judge(expected, **more).principal.roles == ("dev",)
    assert judge(expected).principal.roles == ()
    assert judge(expected, a="text", realm_access=7).principal.roles == ()


def test_what_a_token_was_not_issued_for_it_does_not_open() -> None:
    expected = Expected(
        issuer=ISSUER, audiences=frozenset((AUDIENCE,)), scopes=frozenset(("mcp:tools", "b"))
    )
    assert judge(expected, scope="b mcp:tools x").principal.subject == "ada"
    with pytest.raises(Unproven) as caught:
        judge(expected, scope="b", scp="mcp:tool")
    assert caught.value.fault == "insufficient_scope"
    assert caught.value.why == "the token was not issued for mcp:tools"


@given(st.text(), st.text(), st.text(), st.text())
def test_two_have_the_same_id_only_if_issuer_and_subject_are_the_same(
    issuer: str, subject: str, other_issuer: str, other: str
) -> None:
    same = token_id(issuer, subject) == token_id(other_issuer, other)
    assert same == ((issuer, subject) == (other_issuer, other))


@given(st.dictionaries(st.sampled_from(list(claims())), JSON) | JSON)
def test_any_claims_prove_somebody_or_nobody(said: Any) -> None:
    given_claims: Any = said
    if isinstance(said, dict):
        given_claims = claims() | cast("dict[str, Any]", said)
    try:
        proof = EXPECTED.judge(json.dumps(given_claims).encode(), NOW)
    except Unproven as why:
        assert why.why
    else:
        assert proof.principal.subject
        assert all(proof.principal.roles)
        assert proof.until > NOW


@pytest.mark.parametrize("payload", [b"", b"[]", b"null", b"{", b"\xff", b"[" * 100_000])
def test_what_is_no_object_has_no_claims(payload: bytes) -> None:
    with pytest.raises(Unproven):
        EXPECTED.judge(payload, NOW)
