#!/usr/bin/env python3
"""Compare two submissions class by class; see --help."""

import sys

from tpudet.detection.commands.compare_submissions import main

if __name__ == "__main__":
    sys.exit(main())
