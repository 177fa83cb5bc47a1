"""The official conformance suite, run against a server directly and through the gateway."""
