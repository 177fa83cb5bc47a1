"""The commands of the guides, executed as a reader would; `manual.py` says what each block is."""

import pytest

# The checks of the reader report the texts that they compared, as those in test modules do.
pytest.register_assert_rewrite("tests.guides.reader")
