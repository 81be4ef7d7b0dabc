#!/usr/bin/env python3
"""Add the ancestors of each prediction's label; see --help."""

import sys

from tpudet.detection.commands.add_parents import main

if __name__ == "__main__":
    sys.exit(main())
