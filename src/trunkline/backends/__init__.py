"""Answerers: anything that can satisfy a Call."""
