#!/usr/bin/env python3
"""Join the predictions of shards to one file; see --help."""

import sys

from tpudet.detection.commands.join_predicted_parts import main

if __name__ == "__main__":
    sys.exit(main())
