#!/usr/bin/env python3
"""Run a SavedModel on a folder of images and write a predictions file; see --help."""

import sys

from tpudet.detection.commands.predict import main

if __name__ == "__main__":
    sys.exit(main())
