"""`python -m doubletime` is the `doubletime` command."""

from doubletime.cli.main import main

main()
