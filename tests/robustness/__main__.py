"""`python -m tests.robustness`: the command line."""

import sys

from tests.robustness.command import main
from tests.robustness.run import run

sys.exit(main(sys.argv[1:], run))
