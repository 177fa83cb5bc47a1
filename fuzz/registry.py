# Invariant: any text is a registry or a list of mistakes, each on one line and with a place in the
# file; what is a registry is one again after it was written anew. Never another exception.
"""Fuzz registry files: `python -m fuzz.registry -max_total_time=60`."""

import json
import sys

import atheris

with atheris.instrument_imports(include=["trunkline.sources", "trunkline.documents"]):
    from trunkline.documents.errors import ConfigErrors
    from trunkline.sources.load import embedded, parse
    from trunkline.sources.matching import Matching
    from trunkline.sources.peers import PeerRefused, read_peer

TREE = embedded().tree
ONE = TREE | {"categories": {"css-layout": TREE["categories"]["css-layout"]}}
del ONE["signature"]
SEED = json.dumps(ONE, indent=1)


def mutated(provider: atheris.FuzzedDataProvider) -> str:
    """Return a registry with a few places written over, or anything at all."""
    if provider.ConsumeBool():
        return provider.ConsumeUnicodeNoSurrogates(400)
    text = SEED
    for _ in range(provider.ConsumeIntInRange(1, 4)):
        place = provider.ConsumeIntInRange(0, len(text))
        length = provider.ConsumeIntInRange(0, 20)
        text = text[:place] + provider.ConsumeUnicodeNoSurrogates(12) + text[place + length :]
    return text


def check(data: bytes) -> None:
    provider = atheris.FuzzedDataProvider(data)
    text = mutated(provider)
    for file in ("a.json", "a.toml"):
        try:
            found = parse(text, file)
        except ConfigErrors as wrong:
            assert wrong.errors
            for error in wrong.errors:
                assert "\n" not in str(error)
                assert str(error).startswith(file)
            continue
        again = parse(json.dumps(found.tree), "a.json")
        assert (again.registry, again.digest) == (found.registry, found.digest)
    try:
        peer = read_peer(text.encode(), ONE["curator"]["pubkey"], Matching())
    except PeerRefused:
        return
    for category in peer.categories.values():
        assert {source.rank for source in category.sources} == {1, 2, 3}


if __name__ == "__main__":
    atheris.Setup([*sys.argv, "-max_len=512", "-timeout=10"], check)
    atheris.Fuzz()
