"""`python -m finelu`: the command line, where the `finelu` command is not on the path."""

from finelu.start import main

main()
