"""Backends: what answers calls. `kind` says what a kind of backend is, and how it is connected."""
