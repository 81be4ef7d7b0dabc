"""`python -m tpudet` is the command tpudet."""

import sys

from tpudet.cli import main

if __name__ == "__main__":
    sys.exit(main())
