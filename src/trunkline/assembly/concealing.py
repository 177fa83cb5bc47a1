"""What servers were given in confidence, in `env` and `headers`, is cut out of what they say."""

from collections.abc import Callable

from trunkline.config import Config, ServerSettings

_SHORT = 4
"""What is shorter than this is no secret, and cutting it out would garble everything."""


def without_secrets(text: str, *servers: ServerSettings) -> str:
    """Return `text` without the values that `servers` were given."""
    values = [v for s in servers for v in (*s.env.values(), *s.headers.values())]
    words = {word for value in values for word in (value, *value.split()) if len(word) >= _SHORT}
    for word in sorted(words, key=len, reverse=True):
        text = text.replace(word, "…")
    return text


def conceal_of(config: Callable[[], Config]) -> Callable[[str, str], str]:
    """Return what cuts them out, for a server by its name, as the configuration is by then."""

    def conceal(name: str, text: str) -> str:
        for server in config().servers:
            if server.name == name:
                text = without_secrets(text, server)
        return text

    return conceal
