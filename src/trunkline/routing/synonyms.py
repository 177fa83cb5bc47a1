"""Synonyms: words that people use for one another when they ask for a tool.

Refuses to be a thesaurus: it has the verbs of which nearly every tool's name begins with one, and
the abbreviations that developers write. What it does not have, descriptions mostly say themselves.
"""

from collections.abc import Mapping
from typing import NamedTuple

from trunkline.routing.words import stem

_GROUPS = """
create add new make insert register open raise file
delete remove erase drop destroy discard
update edit modify change alter set patch rename
list show enumerate browse display view
read get retrieve fetch load view open cat show
search find query lookup look locate grep filter
send post publish deliver message
run execute invoke launch start perform call
stop kill terminate cancel abort end close
move rename relocate transfer
copy duplicate clone replicate fork
upload attach push import
download save export fetch pull
write save store put persist
merge combine join
compare diff difference
reply respond answer
explain describe details info information
assign give allocate
link connect relate associate
count number total many
size big large length long
distance far
schema structure field column property
state status
calculate compute
convert translate transform
click press tap
type enter fill input
snapshot screenshot capture picture
wait delay pause sleep
check verify validate test inspect
folder directory
picture image photo
person user member people
email mail
website site web page url
webpage page
ticket issue bug task story
chat conversation message channel
comment note remark
weather forecast
price cost
customer client
command shell terminal bash
process job task
journey route direction directions trip
place location poi
time clock hour
recent latest last newest
error exception crash failure
remember memorize memory forget
log record entry history
edit append prepend
"""

_SHORT = {
    "auth": "authentication",
    "config": "configuration",
    "db": "database",
    "dbs": "databases",
    "dir": "directory",
    "doc": "document",
    "docs": "documentation",
    "env": "environment",
    "exec": "execute",
    "img": "image",
    "info": "information",
    "k8s": "kubernetes",
    "mr": "merge request",
    "msg": "message",
    "org": "organization",
    "param": "parameter",
    "pic": "picture",
    "postgres": "postgresql",
    "pr": "pull request",
    "prs": "pull requests",
    "repo": "repository",
    "repos": "repositories",
    "ref": "reference",
    "tab": "page",
    "temp": "temporary",
    "tz": "timezone",
    "js": "javascript",
    "var": "variable",
}

_STOP = """
a about all am an and any are as at be been by can could did do does every for from had has have he
her here his how i if in into is it its just let like me much my need now of on or our out over
please shall she should so some somewhere such than that the their them then there these they this
those to us very want was we were what when where which while who whose why will with would you your
"""


class Lexicon(NamedTuple):
    """What a Matcher knows of a language; all words are stems."""

    alike: Mapping[str, tuple[str, ...]]
    """What may stand for a word."""
    phrases: Mapping[str, tuple[str, ...]]
    """What an abbreviation of several words is short for."""
    idle: frozenset[str]
    """Words that say nothing about what is asked for."""


def read_lexicon(groups: str, short: Mapping[str, str], idle: str) -> Lexicon:
    """Return a lexicon: a group of like words a line, abbreviations, and words that say nothing."""
    alike: dict[str, dict[str, None]] = {}
    phrases: dict[str, tuple[str, ...]] = {}
    lines = [line.split() for line in groups.splitlines()]
    for word, long in short.items():
        if " " in long:
            phrases[stem(word)] = tuple(map(stem, long.split()))
        else:
            lines.append([word, long])
    for line in lines:
        stems = list(map(stem, line))
        for word in stems:
            alike.setdefault(word, {}).update(dict.fromkeys(stems))
    others = {word: tuple(w for w in found if w != word) for word, found in alike.items()}
    return Lexicon(others, phrases, frozenset(map(stem, idle.split())))


ENGLISH = read_lexicon(_GROUPS, _SHORT, _STOP)
"""English as the users of tools write it."""

NO_LEXICON = Lexicon({}, {}, frozenset())
"""For texts in which every word means itself."""
