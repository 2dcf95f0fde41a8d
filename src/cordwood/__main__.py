"""`python -m cordwood` is the command `cordwood`."""

from cordwood.cli.main import main

main()
