#!/usr/bin/env python3
"""Write the submission CSV of a predictions file; see --help."""

import sys

from tpudet.detection.commands.gen_sub import main

if __name__ == "__main__":
    sys.exit(main())
