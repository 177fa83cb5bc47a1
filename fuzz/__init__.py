"""Coverage-guided fuzzing of what reads other people's bytes; `make fuzz` runs it."""
