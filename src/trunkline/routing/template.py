"""URI templates (RFC 6570), as far as routing needs them: whether a URI could have come from one.

Refuses to expand or to extract: an expression matches anything, literals match themselves. No
regular expressions, so no template can make matching slow: each literal is searched for once.
"""


def matches(template: str, uri: str) -> bool:
    """Tell whether `uri` has the literals in order, the first and the last in their places."""
    first, *rest = literals(template)
    if not rest:
        return uri == first
    *middle, last = rest
    if not uri.startswith(first) or not uri.endswith(last):
        return False
    place, end = len(first), len(uri) - len(last)
    for literal in middle:
        found = uri.find(literal, place, max(end, 0))
        if found < 0:
            return False
        place = found + len(literal)
    return place <= end


def literals(template: str) -> list[str]:
    """Return what stands before, between and after the expressions of a template.

    A brace that is never closed is a literal like any other.
    """
    parts: list[str] = []
    start = 0
    literal = ""
    while (opened := template.find("{", start)) >= 0:
        closed = template.find("}", opened)
        if closed < 0:
            break
        parts.append(literal + template[start:opened])
        literal, start = "", closed + 1
    return [*parts, literal + template[start:]]


def weight(template: str) -> int:
    """Return how much of a template is fixed: of two that match, the heavier says more."""
    return sum(map(len, literals(template)))
