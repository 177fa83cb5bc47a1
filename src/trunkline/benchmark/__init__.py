"""How fast the gateway is here: a fast server, a load generator, and a table of what they see.

    load ──> [nothing | Trunkline | nginx | FastMCP] ──> the fast server

Refuses to know the gateway from inside: Trunkline is started as any other, as a program.
"""
