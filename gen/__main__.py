"""Run the command line: `python -m gen`."""

import sys

from gen.cli import main

if __name__ == "__main__":
    sys.exit(main())
