#!/usr/bin/env python3
# `tpudet gen_tfrecords` under the name that it has in tpu_models.
import sys

try:
    from tpudet.cli import main
except ImportError:
    sys.exit("tpudet is not installed in this Python; run `make install`, use .venv/bin/python")
if __name__ == "__main__":
    sys.argv[1:1] = ["gen_tfrecords"]
    sys.exit(main())
