"""`python -m tests.robustness`: the command line."""

import sys

from tests.robustness.campaign import watched
from tests.robustness.command import main
from tests.robustness.run import LONGEST_S, run

sys.exit(main(sys.argv[1:], watched(run, LONGEST_S)))
