"""`python -m penstock` is the command `penstock`."""

from __future__ import annotations

import sys

from penstock.cli.program import main

if __name__ == "__main__":
    sys.exit(main())
