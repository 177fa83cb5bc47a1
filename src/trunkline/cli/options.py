"""The options that many commands have: one meaning each, and the same words everywhere."""

from pathlib import Path
from typing import Annotated

import typer

Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="A trunkline.toml, or the JSON of any MCP client. Without it: $TRUNKLINE_CONFIG, "
        "./trunkline.toml, or an embedded default.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
