#!/usr/bin/env python3
"""Round the coordinates of a submission to fewer decimals; see --help."""

import sys

from tpudet.detection.commands.trim_sub_decimal_digits import main

if __name__ == "__main__":
    sys.exit(main())
