#!/usr/bin/env python3
"""Leave out predictions below a score; see --help."""

import sys

from tpudet.detection.commands.trim_sub_by_threshold import main

if __name__ == "__main__":
    sys.exit(main())
