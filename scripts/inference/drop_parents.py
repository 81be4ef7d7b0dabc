#!/usr/bin/env python3
"""Keep only predictions of leaf labels; see --help."""

import sys

from tpudet.detection.commands.drop_parents import main

if __name__ == "__main__":
    sys.exit(main())
