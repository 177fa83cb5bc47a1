"""The speed of the gateway on this machine: a fast server, a load generator and tables of results.

    load ──> [nothing | Trunkline | nginx | FastMCP] ──> the fast server

Trunkline is started as a program, like all other contestants.
"""
