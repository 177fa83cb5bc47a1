"""Assembly: what a configuration says, part by part, as the parts themselves want to be told."""
