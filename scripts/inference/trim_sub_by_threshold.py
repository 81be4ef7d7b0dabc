#!/usr/bin/env python3
# `tpudet trim_sub_by_threshold` under the name that it has in tpu_models.
import sys

try:
    from tpudet.cli import main
except ImportError:
    sys.exit("tpudet is not installed in this Python; run `make install`, use .venv/bin/python")
if __name__ == "__main__":
    sys.argv[1:1] = ["trim_sub_by_threshold"]
    sys.exit(main())
