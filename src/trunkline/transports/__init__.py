"""Bytes: each module here makes Channels out of one kind of wire, and does nothing else."""
