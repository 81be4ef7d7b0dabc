#!/usr/bin/env python3
"""Thin command around tpudet.trainkit.weights.list_checkpoint; try --help."""

import os
import sys

if __name__ == "__main__":
    # Read when TensorFlow is imported, whose notes would bury the table.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
    from tpudet.trainkit.weights.list_checkpoint import main

    sys.exit(main())
