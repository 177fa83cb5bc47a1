"""The budgets that keep the code small, and the habits that a linter does not know."""

import ast
import io
import re
import tokenize
from collections import defaultdict
from pathlib import Path

import pytest

from trunkline.mcp.methods import TABLES
from trunkline.mcp.versions import REVISIONS

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
PARTS = ("src", "tests", "examples", "bench", "conformance", "fuzz", "outside", "packaging")
FILES = [
    p
    for part in PARTS
    for p in sorted((ROOT / part).rglob("*"))
    if p.is_file() and not {"node_modules", "__pycache__"}.intersection(p.parts)
]
PYTHON = [p for p in FILES if p.suffix == ".py"]

MAX_FILE = 800
MAX_FUNCTION = 60
MAX_ARGUMENTS = 7
MAX_README = 150
MAX_SENTENCE = 40
FORBIDDEN = {"utils", "util", "helpers", "helper", "common", "manager", "types", "core", "misc"}

OLD_WORDS = frozenset(
    """
    askable asker beside bury correspondent crowded departure departures desk desks door doors
    elsewhere errand errands everybody excuse forwarder fuse fuses guest guests heir heirs inlet
    inquiry judge judged judges keeper kin ledger journal mirrors nobody nosy onlooker onlookers
    outbox outlet park parked parking parks passage passages patience patron patrons poster pulse
    scribe sheet sheets shelf sighting sightings somebody surroundings talk talks tell telling
    tells thriftily told verdict verdicts vigil visit visits warden whoever wish wishes
    """.split()
)
"""Words of the project's first vocabulary. `docs/glossary.md` has the words that replace them."""

OLD_PHRASES = re.compile(
    r"\b(passages?|wardens?|heirs?|patrons?|errands?|onlookers?|vigil|parked|parking|correspondent"
    r"|forwarder|handshake eras?|envelope eras?|whoever|whomever|doors?|desks?|fuses?|outbox|scribe"
    r"|sightings?|verdicts?|ledger|journal|nobody|somebody|everybody|under way|tells? whether)\b",
    re.IGNORECASE,
)
"""The same words in prose. Words with an ordinary meaning, such as "visit", are not listed."""

ALLOWED_PHRASES = {
    "src/trunkline/config/model.py": {"journal"},  # the old key, in the remedy for it
    "src/trunkline/telemetry/journald.py": {"journal"},  # a folder of systemd
}
"""Words that a file may use, with the reason."""

REVISION_MODULES = {
    "src/trunkline/mcp/versions.py",  # defines the revisions
    "src/trunkline/mcp/compat.py",  # translates between them
}
"""Modules that may name a single revision of MCP."""

ONE_REVISION = re.compile(r"V20\d\d_\d\d_\d\d")

METHOD_LITERALS = {
    # The server's own protocol: what the gateway sends to it, its pings and what it cancels.
    "src/trunkline/backends/session_server.py": {
        "initialize",
        "logging/setLevel",
        "notifications/cancelled",
        "notifications/initialized",
        "ping",
        "resources/subscribe",
        "resources/unsubscribe",
    },
    # The same for the stateless protocol; only calls of tools have arguments in headers.
    "src/trunkline/backends/stateless_server.py": {
        "notifications/subscriptions/acknowledged",
        "server/discover",
        "subscriptions/listen",
        "tools/call",
    },
    # What the gateway asks about its tasks.
    "src/trunkline/backends/tasks.py": {
        "tasks/cancel",
        "tasks/get",
        "tasks/result",
        "tasks/update",
    },
    # Functions can be called as tools, and nothing else.
    "src/trunkline/backends/functions.py": {"tools/call"},
    # A client of its own.
    "src/trunkline/cli/call.py": {
        "initialize",
        "notifications/initialized",
        "notifications/progress",
        "tools/call",
    },
    # The request that opens a session has no envelope and no session id, and no place in a batch.
    "src/trunkline/endpoints/router.py": {"initialize"},
    "src/trunkline/endpoints/session.py": {"initialize"},
    # A question that no call waits for any more.
    "src/trunkline/endpoints/session_state.py": {"notifications/cancelled"},
    # "anna called fs__read" does not state the usual method.
    "src/trunkline/gateway/event_text.py": {"tools/call"},
    # It ends the wait of a suspended call.
    "src/trunkline/gateway/gateway.py": {"notifications/elicitation/complete"},
    # No request is named like a notification.
    "src/trunkline/gateway/router.py": {"notifications/"},
    # The handlers of the session protocol, by the names in their rows.
    "src/trunkline/gateway/session.py": {
        "initialize",
        "logging/setLevel",
        "notifications/cancelled",
        "notifications/initialized",
        "notifications/progress",
        "ping",
        "resources/subscribe",
        "resources/unsubscribe",
    },
    # The handlers of the stateless protocol, and the start of a subscription.
    "src/trunkline/gateway/stateless.py": {
        "notifications/subscriptions/acknowledged",
        "resources/subscribe",
        "server/discover",
        "subscriptions/listen",
    },
    # What a backend without the ability refuses.
    "src/trunkline/gateway/upstream_subscriptions.py": {"resources/subscribe"},
    # A member that only this method has.
    "src/trunkline/mcp/compat.py": {"completion/complete"},
    # The steps that find out the era of a server.
    "src/trunkline/mcp/era_detection.py": {"initialize", "server/discover"},
    # The only list that is not named after its member; the names of the notifications of changes.
    "src/trunkline/mcp/features.py": {"notifications/", "resources/templates/list"},
    # How a request is cancelled.
    "src/trunkline/mcp/identity.py": {"notifications/cancelled"},
    # The requests whose form differs between revisions.
    "src/trunkline/mcp/server_requests.py": {
        "elicitation/create",
        "roots/list",
        "sampling/createMessage",
    },
}
"""Methods, or prefixes of them, that a module names because it concerns these alone."""

REPEATED_CLASSES: dict[str, str] = {}
"""Public class names that two modules may define, each with the reason."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def functions(path: Path) -> list[Function]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [node for node in ast.walk(tree) if isinstance(node, Function)]


@pytest.mark.parametrize("path", PYTHON, ids=name)
def test_a_file_is_small(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MAX_FILE


@pytest.mark.parametrize("path", PYTHON, ids=name)
def test_a_function_is_small(path: Path) -> None:
    sizes = {f.name: (f.end_lineno or f.lineno) - f.lineno + 1 for f in functions(path)}
    assert {name: size for name, size in sizes.items() if size > MAX_FUNCTION} == {}


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_a_constructor_takes_few_arguments(path: Path) -> None:
    for function in functions(path):
        if function.name == "__init__":
            count = len(function.args.args) - 1 + len(function.args.kwonlyargs)
            assert count <= MAX_ARGUMENTS, f"line {function.lineno} takes {count}"


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_a_module_has_a_name_of_its_own_and_says_what_it_is(path: Path) -> None:
    assert path.stem not in FORBIDDEN
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    assert docstring.splitlines()[0].endswith((".", "!"))


@pytest.mark.parametrize("path", PYTHON, ids=name)
def test_classes_are_named_for_what_they_are(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ClassDef):
            assert not node.name.startswith(("Base", "Abstract")), node.name
            assert not node.name.endswith(("Impl", "Manager", "Helper")), node.name


def words_of(identifier: str) -> list[str]:
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", identifier)]


def identifiers(tree: ast.Module) -> set[str]:
    """Return the names that a module defines or imports."""
    names: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                names.add(node.name)
            case ast.arg():
                names.add(node.arg)
            case ast.Name(ctx=ast.Store()):
                names.add(node.id)
            case ast.Attribute(ctx=ast.Store()):
                names.add(node.attr)
            case ast.alias():
                names.add((node.asname or node.name).rpartition(".")[2])
            case _:
                pass
    return names


@pytest.mark.parametrize("path", PYTHON, ids=name)
def test_an_identifier_uses_the_words_of_the_field(path: Path) -> None:
    names = identifiers(ast.parse(path.read_text(encoding="utf-8")))
    assert [one for one in sorted(names) if OLD_WORDS.intersection(words_of(one))] == []


def test_a_file_name_uses_the_words_of_the_field() -> None:
    assert [name(path) for path in FILES if OLD_WORDS.intersection(words_of(path.stem))] == []


def prose(text: str) -> str:
    """Return the docstrings and comments of a module; other strings may be test data."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    comments = [token.string for token in tokens if token.type == tokenize.COMMENT]
    docstrings = [
        str(node.value.value)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    ]
    return "\n".join(comments + docstrings)


def old_phrases(text: str) -> set[str]:
    return {match[0].lower() for match in OLD_PHRASES.finditer(text)}


@pytest.mark.parametrize("path", [*SOURCES, *PAGES], ids=name)
def test_prose_uses_the_words_of_the_field(path: Path) -> None:
    found = old_phrases(path.read_text(encoding="utf-8"))
    assert found - ALLOWED_PHRASES.get(name(path), set()) == set()


@pytest.mark.parametrize("path", PYTHON, ids=name)
def test_docstrings_and_comments_use_the_words_of_the_field(path: Path) -> None:
    found = old_phrases(prose(path.read_text(encoding="utf-8")))
    assert found - ALLOWED_PHRASES.get(name(path), set()) == set()


CODE_BLOCK = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
LIST_ITEM = re.compile(r"^ *(?:[-*]|\d+\.) ", re.MULTILINE)
SENTENCE_END = re.compile(r"(?<=[.!?])[*)]*\s+")


def sentences(page: str) -> list[str]:
    """Return the sentences of the paragraphs and lists of a page."""
    text = re.sub(r"\]\([^)]*\)", "]", CODE_BLOCK.sub("", page))
    lines = ["" if re.match(r" *(\||#|<|---)", line) else line for line in text.splitlines()]
    paragraphs = re.split(r"\n\s*\n", LIST_ITEM.sub("\n\n", "\n".join(lines)))
    return [one for paragraph in paragraphs for one in SENTENCE_END.split(paragraph.strip())]


def test_a_page_is_split_into_sentences() -> None:
    page = (
        "# A title\n\nOne, [a\nlink](https://a.example/b.c). **Two.** Three\n- four\n\n| a. b |\n"
    )
    found = [one.split() for one in sentences(page) if one]
    assert found == [["One,", "[a", "link]."], ["**Two."], ["Three"], ["four"]]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_a_sentence_of_the_manual_is_not_too_long(page: Path) -> None:
    found = sentences(page.read_text(encoding="utf-8"))
    assert [one for one in found if len(one.split()) > MAX_SENTENCE] == []


def is_revision(operand: ast.expr) -> bool:
    """Return whether an operand is a revision, or its date."""
    name = operand.attr if isinstance(operand, ast.Attribute) else ""
    name = operand.id if isinstance(operand, ast.Name) else name
    return name == "date" or name.endswith("revision")


NAMED_REVISIONS = re.compile(r"LATEST_\w*REVISION|(\w+_)?REVISIONS")
"""Constants that stand for certain revisions."""

PART_OF_DATE = re.compile(r"20\d\d-.*")


def names_revisions(operand: ast.expr) -> bool:
    """Return whether an operand stands for certain revisions, or for a part of a date."""
    name = operand.id if isinstance(operand, ast.Name) else ""
    text = operand.value if isinstance(operand, ast.Constant) else ""
    is_date = isinstance(text, str) and PART_OF_DATE.fullmatch(text) is not None
    return is_date or NAMED_REVISIONS.fullmatch(name) is not None


def compares_revisions(node: ast.Compare) -> bool:
    """Return whether a comparison looks into revisions; `is` and `in` only tell two apart."""
    operands = (node.left, *node.comparators)
    if any(map(names_revisions, operands)):
        return True
    identity = (ast.Is, ast.IsNot, ast.In, ast.NotIn)
    if all(isinstance(operator, identity) for operator in node.ops):
        return any(isinstance(x, ast.Attribute) and x.attr == "date" for x in ast.walk(node))
    return any(map(is_revision, operands))


@pytest.mark.parametrize(
    "source",
    [
        "revision < other_revision",
        "revision.date in dates",
        "revision is LATEST_SESSION_REVISION",
        "revision in STATELESS_REVISIONS",
        "version < '2025-07'",
    ],
)
def test_a_comparison_of_revisions_is_recognised(source: str) -> None:
    node = ast.parse(source, mode="eval").body
    assert isinstance(node, ast.Compare)
    assert compares_revisions(node)


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_what_differs_between_revisions_is_a_property_of_the_revision(path: Path) -> None:
    found: list[str] = []
    if name(path) in REVISION_MODULES:
        return
    dates = {revision.date for revision in REVISIONS}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Constant(value=str() | bytes() as value):
                text = value if isinstance(value, str) else value.decode("latin-1")
                wrong = text in dates
            case ast.alias(name=named) | ast.Name(id=named) | ast.Attribute(attr=named):
                wrong = ONE_REVISION.fullmatch(named) is not None
            case ast.Compare():
                wrong = compares_revisions(node)
            case _:
                wrong = False
        if wrong:
            found.append(f"line {getattr(node, 'lineno', 0)}: {ast.unparse(node)}")
    assert found == []


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_what_is_known_of_a_method_is_in_its_row(path: Path) -> None:
    if path.stem == "methods":
        return
    names = {name for table in TABLES for name in table}
    names |= {name[: match.end()] for name in names for match in re.finditer("/", name)}
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    found = {node.value for node in nodes if isinstance(node, ast.Constant)}
    assert found & names == METHOD_LITERALS.get(name(path), set())


def test_a_public_class_name_is_defined_once() -> None:
    defined: defaultdict[str, list[str]] = defaultdict(list)
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                defined[node.name].append(name(path))
    repeated = {one: paths for one, paths in defined.items() if len(paths) > 1}
    assert {one: paths for one, paths in repeated.items() if one not in REPEATED_CLASSES} == {}


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= MAX_README


def test_no_test_sleeps() -> None:
    for path in (ROOT / "tests").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("sleep"):
                assert ast.unparse(node.args[0]) == "0", f"{name(path)}:{node.lineno}"
