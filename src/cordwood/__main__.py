"""`python -m cordwood` is the command `cordwood`."""

from cordwood.cli.start import main

main()
