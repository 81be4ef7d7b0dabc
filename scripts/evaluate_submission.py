#!/usr/bin/env python3
"""Score a submission by the rules of the Open Images Challenge; see --help."""

import sys

from tpudet.detection.commands.evaluate_submission import main

if __name__ == "__main__":
    sys.exit(main())
