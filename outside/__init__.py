"""Tests against programs that we did not write; `make test-outside` installs and runs them."""

import pytest

# The checks in these modules report the values that they compared, as those in test modules do.
pytest.register_assert_rewrite("outside.clients", "outside.crossing")
