#!/usr/bin/env python3
# `tpudet predict --shard` with the arguments of tpu_models, whose PART_IDX counts from 0.
import argparse
import os
import sys

try:
    from tpudet.cli import main
except ImportError:
    sys.exit("tpudet is not installed in this Python; run `make install`, use .venv/bin/python")
if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name, kind in (("directory", str), ("part_idx", int), ("num_parts", int)):
        parser.add_argument(name, type=kind)
    parser.add_argument("--destination")
    own, more = parser.parse_known_args()
    target = own.destination or f"{os.path.basename(os.path.normpath(own.directory))}.pkl"
    shard = f"{own.part_idx + 1}/{own.num_parts}"
    sys.argv[1:] = ["predict", target, own.directory, "--shard", shard, *more]
    sys.exit(main())
