# Invariant: any file gives a configuration, or errors, each on one line that begins with the name
# of the file; never another exception.
"""Fuzz configuration files: `python -m fuzz.config -max_total_time=60`."""

import sys
import tempfile
from pathlib import Path

import atheris

from fuzz.inputs import mutated_text

with atheris.instrument_imports(include=["trunkline.config", "trunkline.documents"]):
    from trunkline.config.load import load_config
    from trunkline.documents.errors import ConfigErrors

TOML = """
[gateway]
surface = ["fs__*"]

[http]
listen = "127.0.0.1:8080"
allowed_origins = ["https://example.org"]

[servers.fs]
command = "npx"
args = ["-y", "server", "${HOME}"]
env = { TOKEN = "${TOKEN:-none}" }
timeout = "30s"

[servers.web]
url = "https://example.org/mcp"
headers = { authorization = "Bearer ${TOKEN}" }

[limits]
default_rpm = 60

[limits.tools]
"fs__*" = { rpm = 5, concurrent = 2 }

[[rules]]
allow = ["fs__*"]
roles = ["dev"]
when = "args.path.startsWith('/tmp')"

[roles.dev]
permissions = ["tools.read"]

[kill_switch]
tools = ["fs__delete"]

[audit]
path = "audit.db"
"""

CLIENT = """{"mcpServers": {"fs": {"command": "npx", "args": ["-y", "s"], "env": {"A": "b"}},
  "web": {"type": "http", "url": "https://example.org/mcp", "headers": {"X": "${env:A}"}}},
  "inputs": [{"id": "k", "type": "promptString"}]}"""

ENVIRON = {"TOKEN": "t-0123456789", "HOME": "/home/u"}
FOLDER = Path(tempfile.mkdtemp())


def check(data: bytes) -> None:
    provider = atheris.FuzzedDataProvider(data)
    is_client = provider.ConsumeBool()
    path = FOLDER / ("client.json" if is_client else "trunkline.toml")
    text = mutated_text(provider, [CLIENT if is_client else TOML])
    path.write_text(text, encoding="utf-8", newline="")
    try:
        load_config(path, ENVIRON)
    except ConfigErrors as exc:
        assert exc.errors
        for error in exc.errors:
            assert "\n" not in str(error)
            assert str(error).startswith(str(path)), str(error)


if __name__ == "__main__":
    atheris.Setup([*sys.argv, "-max_len=1024", "-len_control=0", "-timeout=10"], check)
    atheris.Fuzz()
