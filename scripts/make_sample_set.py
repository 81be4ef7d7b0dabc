#!/usr/bin/env python3
"""Draws a small data set in Open Images form; see --help."""

import sys

from tpudet.detection.preparation.sources.sample_set import main

if __name__ == "__main__":
    sys.exit(main())
