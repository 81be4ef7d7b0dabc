#!/usr/bin/env python3
"""Compare two submissions class by class; see --help."""

import sys

from detection.evaluation.compare_submissions import main

if __name__ == "__main__":
    sys.exit(main())
