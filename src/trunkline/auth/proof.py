"""Proof: a principal of whom somebody has made sure, and for how long; or why nobody is.

Refuses to carry what was shown: neither a proof nor its absence has a token in it, so that neither
can put one into a log or an answer.
"""

from typing import Literal

from msgspec import Struct

from trunkline.mcp.principal import Principal

Fault = Literal["invalid_request", "invalid_token", "insufficient_scope", "unavailable"]
"""What is wrong, as RFC 6750 has it; `unavailable` is our own fault: ask again later."""


class Proof(Struct, frozen=True):
    """Who it is, and until when that is worth anything, in seconds since 1970."""

    principal: Principal
    until: float


class Unproven(Exception):
    """Nobody can be made sure of; `why` may be told to whoever asked."""

    def __init__(self, why: str, fault: Fault = "invalid_token") -> None:
        super().__init__(why)
        self.why = why
        self.fault: Fault = fault


class Forged(Unproven):
    """Something was signed by somebody else."""

    def __init__(self) -> None:
        super().__init__("the signature of the token is not good")
