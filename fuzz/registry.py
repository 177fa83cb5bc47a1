# Invariant: any text gives a registry or errors, each on one line and with a position in the file;
# a reformatted registry is still valid. Never another exception.
"""Fuzz registry files: `python -m fuzz.registry -max_total_time=60`."""

import json
import sys

import atheris

from fuzz.inputs import mutated_text

with atheris.instrument_imports(include=["trunkline.sources", "trunkline.documents"]):
    from trunkline.documents.errors import ConfigErrors
    from trunkline.sources.federation import PeerRejected, read_peer
    from trunkline.sources.registry_file import load_embedded, parse_registry
    from trunkline.sources.topics import MatchSettings

TREE = load_embedded().tree
ONE = TREE | {"categories": {"css-layout": TREE["categories"]["css-layout"]}}
del ONE["signature"]
SEED = json.dumps(ONE, indent=1)


def check(data: bytes) -> None:
    provider = atheris.FuzzedDataProvider(data)
    text = mutated_text(provider, [SEED])
    for file in ("a.json", "a.toml"):
        try:
            found = parse_registry(text, file)
        except ConfigErrors as exc:
            assert exc.errors
            for error in exc.errors:
                assert "\n" not in str(error)
                assert str(error).startswith(file)
            continue
        again = parse_registry(json.dumps(found.tree), "a.json")
        assert (again.registry, again.digest) == (found.registry, found.digest)
    try:
        peer = read_peer(text.encode(), ONE["curator"]["pubkey"], MatchSettings())
    except PeerRejected:
        return
    for category in peer.categories.values():
        assert {source.rank for source in category.sources} == {1, 2, 3}


if __name__ == "__main__":
    atheris.Setup([*sys.argv, "-max_len=512", "-timeout=10"], check)
    atheris.Fuzz()
