"""Claims of verified tokens: what they must contain to authenticate a principal."""

import json
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.auth.issuer import AUDIENCE, ISSUER, NOW, claims
from tests.json_values import JSON
from trunkline.auth.claims import (
    MAX_NAME_CHARS,
    MAX_ROLES,
    MAX_SCOPES,
    AuthenticationError,
    BadSignature,
    ClaimsValidator,
    VerifiedIdentity,
    jwt_principal_id,
)
from trunkline.mcp.identity import LOCAL_PRINCIPAL


def test_an_authentication_error_has_a_reason_and_a_code() -> None:
    assert (AuthenticationError("no").reason, AuthenticationError("no").code) == (
        "no",
        "invalid_token",
    )
    assert AuthenticationError("later", "unavailable").code == "unavailable"
    assert isinstance(BadSignature(), AuthenticationError)
    assert BadSignature().code == "invalid_token"


def test_an_identity_has_a_principal_and_an_end() -> None:
    assert (
        VerifiedIdentity(LOCAL_PRINCIPAL, 1.0).principal,
        VerifiedIdentity(LOCAL_PRINCIPAL, 1.0).valid_until,
    ) == (LOCAL_PRINCIPAL, 1.0)


EXPECTED = ClaimsValidator(issuer=ISSUER, audiences=frozenset((AUDIENCE, "other")))


def validated(
    expected: ClaimsValidator = EXPECTED, now: float = NOW, **changes: Any
) -> VerifiedIdentity:
    return expected.validate(json.dumps(claims(**changes)).encode(), now)


def refused(expected: ClaimsValidator = EXPECTED, now: float = NOW, **changes: Any) -> str:
    with pytest.raises(AuthenticationError) as caught:
        validated(expected, now, **changes)
    return caught.value.reason


@pytest.mark.holds("O0.8", "M10")
def test_a_valid_token_authenticates_its_subject() -> None:
    identity = validated(scope="a b", scp=["c"])
    assert identity.principal.id == "jwt:https://id.example|ada"
    assert identity.principal.subject == "ada"
    assert identity.principal.roles == ("dev",)
    assert identity.principal.scopes == {"a", "b", "c"}
    assert identity.valid_until == NOW + 3600 + 30


@pytest.mark.holds("O0.8")
@pytest.mark.parametrize("claim", ["iss", "aud", "exp", "sub"])
def test_a_missing_required_claim_is_an_error(claim: str) -> None:
    missing: dict[str, Any] = {claim: None}
    assert refused(**missing)


@pytest.mark.parametrize("issuer", ["https://id.example/", "HTTPS://ID.EXAMPLE", "", 1, [ISSUER]])
def test_an_issuer_is_compared_exactly(issuer: Any) -> None:
    assert refused(iss=issuer) == "the token is from another issuer"


@pytest.mark.parametrize("audience", [AUDIENCE, [AUDIENCE], ["x", AUDIENCE], "other"])
def test_an_audience_may_be_one_or_several(audience: Any) -> None:
    assert validated(aud=audience).principal.subject == "ada"


@pytest.mark.parametrize(
    "audience", ["", "Trunkline", "trunkline ", [], ["x"], [AUDIENCE, 1], {AUDIENCE: 1}, 7, True]
)
def test_a_token_for_another_audience_is_rejected(audience: Any) -> None:
    assert refused(aud=audience) == "the token is for another audience"


def test_clocks_may_differ_by_the_skew() -> None:
    end = NOW + 3600
    assert validated(now=end + 29.9)
    assert refused(now=end + 30) == "the token has expired"
    assert validated(nbf=int(NOW) + 30, iat=int(NOW) + 30)
    assert refused(nbf=int(NOW) + 31) == "the token is not valid yet (nbf)"
    assert refused(iat=int(NOW) + 31) == "the token is not valid yet (iat)"
    exact = ClaimsValidator(issuer=ISSUER, audiences=frozenset((AUDIENCE,)), skew=0)
    assert refused(exact, now=end) == "the token has expired"


@pytest.mark.parametrize("name", ["exp", "nbf", "iat"])
@pytest.mark.parametrize("value", ["1800003600", True, [], -1, 2**53, 1e300])
def test_a_time_is_a_number_of_seconds(name: str, value: Any) -> None:
    wrong: dict[str, Any] = {name: value}
    assert refused(**wrong) == f"expected seconds since 1970 as {name}"


@pytest.mark.parametrize(
    "subject", ["", " ", "a\nb", "a\x1b[31m", "x" * (MAX_NAME_CHARS + 1), 7, ["a"]]
)
def test_a_subject_is_printable(subject: Any) -> None:
    assert refused(sub=subject).startswith("expected a subject (sub)")


@pytest.mark.parametrize(
    ("role", "roles"), [("dev", ("dev",)), (["a", "b", "a"], ("a", "b")), (None, ())]
)
def test_roles_are_one_or_several_or_none(role: Any, roles: tuple[str, ...]) -> None:
    assert validated(role=role).principal.roles == roles


@pytest.mark.holds("O0.8")
@pytest.mark.parametrize("role", ["", [], [""], ["a", 1], {"a": 1}, 7, ["r"] * 0, "a\nb"])
def test_an_invalid_role_is_rejected(role: Any) -> None:
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
def test_the_role_claim_may_be_nested(name: str, more: dict[str, Any]) -> None:
    expected = ClaimsValidator(issuer=ISSUER, audiences=frozenset((AUDIENCE,)), role_claim=name)
    assert validated(expected, **more).principal.roles == ("dev",)
    assert validated(expected).principal.roles == ()
    assert validated(expected, a="text", realm_access=7).principal.roles == ()


def test_a_token_without_the_required_scope_is_rejected() -> None:
    expected = ClaimsValidator(
        issuer=ISSUER, audiences=frozenset((AUDIENCE,)), scopes=frozenset(("mcp:tools", "b"))
    )
    assert validated(expected, scope="b mcp:tools x").principal.subject == "ada"
    with pytest.raises(AuthenticationError) as caught:
        validated(expected, scope="b", scp="mcp:tool")
    assert caught.value.code == "insufficient_scope"
    assert caught.value.reason == "the token lacks the scope mcp:tools"


@given(st.text(), st.text(), st.text(), st.text())
def test_principal_ids_are_unique_per_issuer_and_subject(
    issuer: str, subject: str, other_issuer: str, other: str
) -> None:
    same = jwt_principal_id(issuer, subject) == jwt_principal_id(other_issuer, other)
    assert same == ((issuer, subject) == (other_issuer, other))


@given(st.dictionaries(st.sampled_from(list(claims())), JSON) | JSON)
def test_any_claims_are_accepted_or_rejected(payload: Any) -> None:
    given_claims: Any = payload
    if isinstance(payload, dict):
        given_claims = claims() | cast("dict[str, Any]", payload)
    try:
        identity = EXPECTED.validate(json.dumps(given_claims).encode(), NOW)
    except AuthenticationError as why:
        assert why.reason
    else:
        assert identity.principal.subject
        assert all(identity.principal.roles)
        assert identity.valid_until > NOW


@pytest.mark.parametrize("payload", [b"", b"[]", b"null", b"{", b"\xff", b"[" * 100_000])
def test_a_payload_that_is_not_an_object_is_rejected(payload: bytes) -> None:
    with pytest.raises(AuthenticationError):
        EXPECTED.validate(payload, NOW)
