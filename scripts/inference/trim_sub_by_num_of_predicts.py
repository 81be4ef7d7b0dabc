#!/usr/bin/env python3
"""Keep the best N predictions of a submission; see --help."""

import sys

from tpudet.detection.commands.trim_sub_by_num_of_predicts import main

if __name__ == "__main__":
    sys.exit(main())
