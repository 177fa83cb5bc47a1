"""`python -m trunkline` is `trunkline`."""

import sys

from trunkline.cli import main

sys.exit(main())
