"""Coverage-guided fuzzing of the parsers of foreign input; `make fuzz` runs it."""
