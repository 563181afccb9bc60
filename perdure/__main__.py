"""`python -m perdure` is the console script."""

from perdure._launch import main

main()
