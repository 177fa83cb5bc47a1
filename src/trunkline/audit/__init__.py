"""The audit log: an append-only, hash-chained record of what went through the gateway.

Read in this order:

- records and redaction: what is recorded of an event
- store, sqlite and postgresql: where rows are kept
- hash_chain: how rows are linked
- call_batch: many calls in one row
- writer and log: from the event loop to the writer thread
- verification: whether the log is intact
"""
