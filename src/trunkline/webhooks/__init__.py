"""Webhooks of the gateway: its events, sent to URLs that the operator names.

Modules in import order: store (messages in a SQLite file), messages (events as notifications),
delivery (sends them). The signatures and one attempt to send are in `jsonrpc/webhooks.py` and
`http/webhooks.py`.
"""
