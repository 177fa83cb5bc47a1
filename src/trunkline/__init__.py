"""Trunkline: a governed MCP gateway on a JSON-RPC 2.0 engine of its own."""

__version__ = "0.1.0"
