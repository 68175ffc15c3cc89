"""`python -m robustness`: the command line."""

import sys

from robustness.campaign import watched
from robustness.command import main
from robustness.run import LONGEST_S, run

sys.exit(main(sys.argv[1:], watched(run, LONGEST_S)))
