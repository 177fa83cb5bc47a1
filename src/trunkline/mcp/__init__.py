"""What MCP says: pure knowledge of its revisions, mostly tables."""
