#!/usr/bin/env python3
"""Thin command around tpudet.detection.commands.gen_tfrecords; try --help."""

import os
import sys

if __name__ == "__main__":
    # Read when TensorFlow is imported. It computes nothing here, and its notes on how it would
    # compute would bury what this command says.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
    from tpudet.detection.commands.gen_tfrecords import main

    sys.exit(main())
