#!/usr/bin/env python3
"""Join submissions of parts of the classes into one; see --help."""

import sys

from tpudet.detection.commands.join_subs import main

if __name__ == "__main__":
    sys.exit(main())
