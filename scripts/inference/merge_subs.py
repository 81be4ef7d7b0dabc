#!/usr/bin/env python3
"""Merge submissions into one; see --help."""

import sys

from tpudet.detection.commands.merge_subs import main

if __name__ == "__main__":
    sys.exit(main())
