"""The curated registry: for each topic exactly three sources that people chose, with provenance.

Read it in this order:

- model: the types of a registry
- signing: keys, signatures, the change log
- registry_file: reading and writing files
- scoring and topics: the topic of a query
- registry_cache: the current registry
- federation: registries of other curators
- tools: MCP
"""
