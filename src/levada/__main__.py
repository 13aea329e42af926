"""`python -m levada` is the command `levada`."""

from levada.cli.main import main

main()
