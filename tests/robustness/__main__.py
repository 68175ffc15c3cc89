"""`python -m tests.robustness`: the command line."""

import sys

from tests.robustness.command import main

sys.exit(main(sys.argv[1:]))
