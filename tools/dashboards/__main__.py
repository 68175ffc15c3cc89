"""`python -m tools.dashboards`: write the dashboards, or compare them (`--check`)."""

import sys

from tools.dashboards.writing import main

sys.exit(main(sys.argv[1:]))
