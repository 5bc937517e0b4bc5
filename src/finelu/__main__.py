"""`python -m finelu`: the command line, where the `finelu` command is not on the path."""

import sys

from finelu.cli import main

sys.exit(main())
