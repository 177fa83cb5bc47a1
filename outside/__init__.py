"""Tests against programs that we did not write; `make test-outside` installs and runs them."""
