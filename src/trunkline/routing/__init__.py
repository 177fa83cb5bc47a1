"""The decisions: what goes where, and under which name. Pure; time is an argument."""
