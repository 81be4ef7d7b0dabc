#!/usr/bin/env python3
"""Tables every training run below a folder or bucket; --help says more."""

import sys

from tpudet.trainkit.training.runs import main

if __name__ == "__main__":
    sys.exit(main())
