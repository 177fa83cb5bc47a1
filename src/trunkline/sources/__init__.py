"""The curated registry: for each topic exactly three sources, chosen by people, with provenance.

Read it in this order: model (what a registry says); keys (who says so); load (from a file);
matching (which topic is meant); changes (how it came to be so); edit (writing it); shelf (what is
served, kept fresh); peers (registries of others); tools (all of it over MCP); schema stands alone.
"""
