"""Authority: the policy, asked for real callers and offers, and no oftener than need be.

    Caller, Entry ──> Who, What ──> Standing, kept ──> sees | check ──> not_allowed, or on it goes

Refuses to decide: the policy does. It translates, remembers, and says no in the caller's words.

Rules upheld here:
1. Lists and calls ask for the same Standing, so that what is listed is what is not unknown.
2. What is judged are the bytes that are forwarded; what could be read in two ways is refused.
3. What is remembered is bounded, and belongs to a definition: another definition is judged anew.
"""

from collections.abc import Hashable
from typing import TypeAlias

from msgspec import Struct

from trunkline.gateway.passage import Passage
from trunkline.jsonrpc import Raw, RpcError, from_raw
from trunkline.mcp.annotations import read_hints
from trunkline.mcp.caller import Caller
from trunkline.mcp.offer import Kind
from trunkline.mcp.refusal import Refusal, refuse
from trunkline.routing.catalog import Entry
from trunkline.routing.legible import read_arguments
from trunkline.routing.policy import ALLOW, KIND_NAMES, Policy, Standing, Verdict, What, Who

MOST = 20_000
"""How many decisions are remembered."""

LONGEST = 256
"""How long a name may be for that, in characters."""

_Known: TypeAlias = dict[tuple[Kind, str, str], tuple[Raw, Standing]]


class Authority:
    """Says who may do what."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self._tells_subjects = "subject" in policy.reads
        self._tells_clients = "client" in policy.reads
        self._known: dict[Hashable, _Known] = {}
        self._count = 0

    def key(self, caller: Caller) -> Hashable:
        """Return what callers have in common who are never told apart."""
        principal = caller.principal
        if not self._tells_subjects and not self._tells_clients:
            return principal.roles
        subject = principal.subject if self._tells_subjects else ""
        client = client_name(caller.client) if self._tells_clients else ""
        return (principal.roles, subject, client)

    def sees(self, caller: Caller, entry: Entry) -> bool:
        """Tell whether an offer exists for a caller: whether some call of it could be allowed."""
        return self.standing(caller, entry).visible

    def hidden_by(self, caller: Caller, entry: Entry) -> str | None:
        """Return the rule that hides an offer from a caller; None if it is not hidden."""
        standing = self.standing(caller, entry)
        return None if standing.visible else standing.final.rule

    def settled(self, caller: Caller, entry: Entry) -> str | None:
        """Return the rule that allows all calls of an offer by a caller, if one does."""
        standing = self.standing(caller, entry)
        allows = standing.final.outcome is ALLOW and not standing.conditional
        return standing.final.rule if allows else None

    def check(self, passage: Passage, entry: Entry) -> None:
        """Refuse what is not allowed, and note the rule that decided; raises `not_allowed`."""
        standing = self.standing(passage.caller, entry)
        if not standing.conditional:
            verdict = standing.final
        elif passage.request.method == "completion/complete":
            verdict = _whatever(standing)
        else:
            verdict = _judged(standing, passage.arguments)
        passage.rule = verdict.rule
        if verdict.outcome is not ALLOW:
            raise _not_allowed(passage.caller, entry)

    def recheck(self, caller: Caller, entry: Entry) -> None:
        """Refuse what would not be allowed whatever the arguments; raises `not_allowed`."""
        if _whatever(self.standing(caller, entry)).outcome is not ALLOW:
            raise _not_allowed(caller, entry)

    def standing(self, caller: Caller, entry: Entry) -> Standing:
        """Return what a caller is to an offer."""
        key = self.key(caller)
        known = self._known.get(key)
        name = (entry.kind, entry.public, entry.backend)
        if known is not None:
            found = known.get(name)
            if found is not None and found[0] is entry.definition:
                return found[1]
        standing = self.policy.stand(_who(caller), what_is(entry))
        self._remember(key, name, (entry.definition, standing))
        return standing

    def _remember(
        self, key: Hashable, name: tuple[Kind, str, str], found: tuple[Raw, Standing]
    ) -> None:
        if len(name[1]) > LONGEST:
            return  # a URI that somebody made up, most likely
        if self._count >= MOST:
            self._known, self._count = {}, 0
        known = self._known.setdefault(key, {})
        self._count += name not in known
        known[name] = found


class _Client(Struct):
    name: object = ""


def client_name(client: Raw) -> str:
    """Return what a client calls itself; one that does not say so is nobody in particular."""
    try:
        name = from_raw(client, _Client).name
    except ValueError:
        return ""
    return name if isinstance(name, str) else ""


def _who(caller: Caller) -> Who:
    principal = caller.principal
    return Who(principal.roles, principal.subject, client_name(caller.client))


def what_is(entry: Entry) -> What:
    """Return an offer as rules know it."""
    uri = entry.native if entry.kind in (Kind.RESOURCE, Kind.TEMPLATE) else ""
    hints = read_hints(entry.definition)
    return What(entry.kind, entry.public, entry.backend, uri, hints)


def _judged(standing: Standing, arguments: Raw | None) -> Verdict:
    try:
        return standing.judge(read_arguments(arguments))
    except ValueError as why:
        text = str(why)
        text = f"{text[:1].lower()}{text[1:]} in 'arguments', which a rule reads"
        raise RpcError.invalid_params(text) from None


def _whatever(standing: Standing) -> Verdict:
    """Return what holds whatever the arguments: with conditions, that some may do."""
    if standing.conditional:
        return Verdict(ALLOW, standing.conditional[0].place)
    return standing.final


def _not_allowed(caller: Caller, entry: Entry) -> RpcError:
    message = f"Permission denied for {KIND_NAMES[entry.kind]}: {entry.public}"
    return refuse(Refusal.NOT_ALLOWED, message, caller.version)
