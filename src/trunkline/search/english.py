"""English: tells real English words from misspelt ones.

The list has 40,000 common words with their forms. It is one sorted text, because a set would take
ten times the memory, and only the unknown words of a query are looked up.
"""

from importlib.resources import files

_TEXT = f"\n{files('trunkline.search').joinpath('english_words.txt').read_text('ascii')}"


def is_english(word: str) -> bool:
    """Return whether a word of small letters, at least three, is in the list."""
    low, high = 0, len(_TEXT) - 1  # a line break is at both
    while low < high:
        start = _TEXT.rfind("\n", low, (low + high) // 2 + 1)
        end = _TEXT.index("\n", start + 1)
        found = _TEXT[start + 1 : end]
        if found == word:
            return True
        low, high = (end, high) if found < word else (low, start)
    return False
