#!/usr/bin/env python3
"""Thin command around tpudet.detection.commands.show_augmented; try --help."""

import os
import sys

if __name__ == "__main__":
    # Read when TensorFlow is imported, whose notes would bury the progress bar.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
    from tpudet.detection.commands.show_augmented import main

    sys.exit(main())
