"""Servers that are part of Trunkline, as their settings have them."""

from pathlib import Path

from trunkline.backends.functions import Functions
from trunkline.config import ServerSettings
from trunkline.operator.desk import Desk


def builtin(server: ServerSettings, desk: Desk) -> Functions:
    """Return a server that is part of Trunkline, not started yet."""
    if server.builtin == "operator":
        from trunkline.operator.tools import Operator  # noqa: PLC0415  see below

        return Operator(desk, changes=server.operator_tools == "all")
    if server.builtin == "sources":
        return sources(server)
    from trunkline.backends.search import Search  # noqa: PLC0415  only whoever has it waits for it
    from trunkline.gateway.finder import Finder  # noqa: PLC0415

    return Search(Finder(desk.gateway.registry))


def sources(server: ServerSettings) -> Functions:
    """Return the registry of sources that the settings name, as a backend that is to be started."""
    from trunkline.routing.classic import Weights  # noqa: PLC0415  see above
    from trunkline.sources.matching import Matching  # noqa: PLC0415
    from trunkline.sources.peers import Peers  # noqa: PLC0415
    from trunkline.sources.shelf import Shelf  # noqa: PLC0415
    from trunkline.sources.tools import SourcesBackend  # noqa: PLC0415

    matching = Matching(
        scoring=server.scoring,
        threshold=server.threshold,
        weights=Weights(server.fuzzy_weight, server.keyword_weight),
    )
    path = Path(server.registry) if server.registry else None
    return SourcesBackend(Shelf(path, matching, server.curator_key), Peers(matching))
