"""What is proven, and what is not."""

from trunkline.auth.proof import Forged, Proof, Unproven
from trunkline.mcp.principal import LOCAL


def test_what_is_not_proven_says_why_and_whose_fault_it_is() -> None:
    assert (Unproven("no").why, Unproven("no").fault) == ("no", "invalid_token")
    assert Unproven("later", "unavailable").fault == "unavailable"
    assert isinstance(Forged(), Unproven)
    assert Forged().fault == "invalid_token"


def test_a_proof_is_of_somebody_and_ends() -> None:
    assert (Proof(LOCAL, 1.0).principal, Proof(LOCAL, 1.0).until) == (LOCAL, 1.0)
