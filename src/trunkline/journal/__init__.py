"""The journal: an append-only record of what went through the gateway, that can be trusted.

Read in this order: record and redact (what is written down of an event); chain (what holds records
together); store, sqlite and postgresql (where they are); head_file (a second place for the end of
the chain); ledger (the chain in a store); inbox, writer and journal (from the event loop to a
thread of our own); audit (whether it is whole).
"""
