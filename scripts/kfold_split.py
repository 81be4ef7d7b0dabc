#!/usr/bin/env python3
"""Thin command around tpudet.detection.preparation.open_images.folds; try --help."""

import os
import sys

if __name__ == "__main__":
    # Read when TensorFlow is imported, which does no more here than open files.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
    from tpudet.detection.preparation.open_images.folds import main

    sys.exit(main())
