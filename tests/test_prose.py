"""The patterns that make prose hard to read: long sentences, riddles, and inverted clauses.

`make check` reads the manual, and the docstrings, comments and messages of `src`. Code, diagrams
and headings are left out. CONTRIBUTING.md has the rules for writing.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]

MAX_WORDS = 30
"""The longest sentence. Aim at 25."""

RIDDLES = {
    r"who(ever|mever)|nobody|somebody|everybody|(those|all|ones?) whom?": (
        "name the actor, such as the client, the server, the user"
    ),
    r"of (which|whom)|the (latter|former)": "make two sentences, and repeat the noun",
    r"(is|are|was|were) (that|those) of": "repeat the noun: the timeout is the server's timeout",
    r"(?<!the )(?<!only )ones? (that|which)": "say the noun instead of 'one'",
    r"(is|are|was|were) to be|what is to": "say who must do it, or use 'must'",
    r"as \w+ (has|have) it|without a word|but for|(all|none) that (is|are|has|have)": (
        "use the plain word: 'as X says', 'silently', 'except', 'everything', 'nothing'"
    ),
    r"so that \w+ be": "use 'so that it is' or 'so that it can be'",
    r"shall|anew|hence|thus|whence|lest|albeit|forthwith|henceforth|whilst|thereof|therein|thereby"
    r"|whereby|wherein|whereupon|hereby|herein|thereupon|unto|upon|notwithstanding|whatsoever": (
        "use today's word: must, again, so, while, of it, on"
    ),
}
"""Phrases that make a reader look for what they stand for, each with what to write instead."""

INVERTED = re.compile(
    r"Of (?:a|an|the|all|each|every|its|those|these)\b[^:]*,"
    r"|(?:Nor|Not (?:only|until|before)|Never (?:is|are|does|do|has|have|may|can)"
    r"|Only (?:then|there|now|so) (?:is|are|does|do|has|have|may|can|will)"
    r"|(?:So|Such|Neither) (?:is|are|does|do|has|have|may|can)"
    r"|What (?:is|are|was|were|cannot|may not|comes|came)\b[^:?]* (?:is|are|was|stays|goes|gets))\b"
)
"""Beginnings of sentences that put the verb or the object in front of the actor."""

ALLOWED = {
    "src/trunkline/search/words.py": "lists of words",
    "src/trunkline/sources/topics.py": "a list of words",
    "docs/reference/benchmarks.md": "lists of versions and figures, written by a command",
}
"""Files whose strings are no prose, and pages that are none, each with the reason."""


class Sentence(NamedTuple):
    line: int
    text: str

    @property
    def words(self) -> int:
        return len(re.findall(r"[^\W_][\w'’./-]*", self.text))


END = re.compile(r"(?<=[.!?])(?<!e\.g\.)(?<!i\.e\.)[\"”)*_]*\s+(?=[\"“(*_-]*\w)")
PARAGRAPHS = re.compile(r"\n\s*\n|\n\s*(?:[-*+] |\d+\. )")
DIAGRAM = re.compile(r"──|[│├└┌┐┘]|^\s*\||\S {3,}\S", re.MULTILINE)
"""What prose does not have: lines and arrows, the rows of a table, columns."""


def sentences(text: str, line: int = 1) -> Iterator[Sentence]:
    """Split text into sentences; code becomes one word, and a list of code too."""
    text = re.sub(r"<[^<>]+>", "", re.sub(r"(`+)[^`]+\1", "CODE", text))
    text = re.sub(r"CODE(?:,\s+CODE)+(?:,?\s+(?:and|or)\s+CODE)?", "CODE", text)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    start = 0
    for gap in [*PARAGRAPHS.finditer(text), None]:
        paragraph = text[start : gap.start() if gap else None]
        at = line + text.count("\n", 0, start)
        start = gap.end() if gap else start
        if not DIAGRAM.search(paragraph):
            yield from (Sentence(at, each) for each in END.split(" ".join(paragraph.split())))


def page_sentences(text: str) -> Iterator[Sentence]:
    """Return the sentences of a page of Markdown; each cell of a table has its own."""
    lines: list[str] = []
    code = False
    for number, line in enumerate(text.splitlines(), 1):
        fence = line.lstrip().startswith("```")
        code ^= fence
        if line.startswith("|"):
            cells = re.split(r"(?<!\\)\|", line.strip("| "))
            for cell in cells:
                yield from sentences(cell.strip(), number)
        prose = not (code or fence or line.startswith(("#", "|", "    ")))
        lines.append(line if prose else "")
    yield from sentences("\n".join(lines))


def comment_sentences(text: str) -> Iterator[Sentence]:
    """Return the sentences of the comments of a module; lines that follow each other are one."""
    found: list[tuple[int, str]] = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type != tokenize.COMMENT:
            continue
        said, line = token.string.lstrip("#: "), token.start[0]
        alone = token.line.lstrip().startswith("#")
        if found and alone and found[-1][0] + found[-1][1].count("\n") + 1 == line:
            found[-1] = (found[-1][0], f"{found[-1][1]}\n{said}")
        else:
            found.append((line, said))
    for line, said in found:
        yield from sentences(said, line)


def string_sentences(text: str) -> Iterator[Sentence]:
    """Return the sentences of the strings of a module, with a word for each formatted value."""
    inner: set[ast.AST] = set()
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.JoinedStr(values=values):
                inner.update(values)
                parts = [str(v.value) if isinstance(v, ast.Constant) else "X" for v in values]
                said = "".join(parts)
            case ast.Constant(value=str() as said) if node not in inner:
                pass
            case _:
                continue
        if not re.search(r"^\s*[A-Z]{4,} |\(\?", said):  # not SQL, no regular expression
            yield from sentences(said, node.lineno)


def mistakes(found: Iterator[Sentence]) -> Iterator[str]:
    for sentence in found:
        shown = f"line {sentence.line}: {sentence.text!r}"
        if sentence.words > MAX_WORDS:
            yield f"{shown} has {sentence.words} words: split it ({MAX_WORDS} at most, aim at 25)"
        for riddle, remedy in RIDDLES.items():
            if hit := re.search(rf"\b({riddle})\b", sentence.text, re.IGNORECASE):
                yield f"{shown} has {hit[0]!r}: {remedy}"
        if hit := INVERTED.match(sentence.text):
            yield f"{shown} begins with {hit[0]!r}: begin with the actor, then the verb"


HARD = [
    "Whoever reads the file cannot log in.",
    "Those who call get an error.",
    "The lists, of which one is empty, are merged.",
    "The clock is that of the loop.",
    "One that has ended is started again.",
    "A call that is to be recorded waits.",
    "As records have it, the id is short.",
    "It goes on, so that it be complete.",
    "The file is read anew.",
    "Of a call that fails, the error is kept.",
    "Nor does it stop the process.",
    "Only then is the payload decoded.",
    "So do lists.",
    "What is read from a batch is checked.",
    "What cannot be seen in the entry, such as a script, is left to others.",
    " ".join(["word"] * 31),
    f"A `{'code ' * 40}` counts as one word, but {' '.join(['word'] * 30)}.",
]

EASY = [
    "The client is the caller whose token was read.",
    "Of two equal names, the first keeps it.",
    "Only then the payload is decoded.",
    "What is a session?",
    "So that ids cannot be mixed up, each has a prefix.",
    "Such a call is refused.",
    "The only one that is left is used.",
    f"A sentence of {' '.join(['word'] * 25)}. Another of {' '.join(['word'] * 25)}.",
    "client ──> of which ──> server",
    f"A call of `f({', '.join(['x'] * 40)})` is one word.",
]


@pytest.mark.parametrize("text", HARD)
def test_a_sentence_that_is_hard_to_read_is_found(text: str) -> None:
    for found in (sentences(text), page_sentences(f"# Page\n\n- Text. {text}")):
        assert list(mistakes(found)) != []
    assert list(mistakes(page_sentences(f"| a | b |\n|---|---|\n| c | {text} |"))) != []
    assert list(mistakes(comment_sentences(f"x = 1\n# {text}\n"))) != []
    assert list(mistakes(string_sentences(f"print({text!r})"))) != []


@pytest.mark.parametrize("text", EASY)
def test_a_sentence_that_is_easy_to_read_is_not_reported(text: str) -> None:
    assert list(mistakes(sentences(text))) == []
    assert list(mistakes(page_sentences(f"# Whoever\n\n```sh\nwhoever\n```\n\n{text}"))) == []


def test_a_sentence_goes_on_in_the_next_line_of_a_comment() -> None:
    text = f"# one {'word ' * 20}\n# {'word ' * 20}\nx = 1  # {'word ' * 20}\n"
    assert [(found.line, found.words) for found in comment_sentences(text)] == [(1, 41), (3, 20)]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_docstrings_comments_and_messages_are_easy_to_read(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    found = list(mistakes(comment_sentences(text)))
    if str(path.relative_to(ROOT)) not in ALLOWED:
        found += mistakes(string_sentences(text))
    if found:
        pytest.fail("\n".join(found), pytrace=False)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_page_is_easy_to_read(page: Path) -> None:
    if str(page.relative_to(ROOT)) in ALLOWED:
        return
    if found := list(mistakes(page_sentences(page.read_text(encoding="utf-8")))):
        pytest.fail("\n".join(found), pytrace=False)
