#!/usr/bin/env python3
"""Thin command around tpudet.detection.commands.import_legacy_config; try --help."""

import os
import sys

if __name__ == "__main__":
    # Read when TensorFlow is imported: it computes nothing here, and need not say how it would.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
    from tpudet.detection.commands.import_legacy_config import main

    sys.exit(main())
