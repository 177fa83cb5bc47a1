"""Benchmarks of the engine against bare JSON libraries, mcp-types and other JSON-RPC libraries."""
