#!/usr/bin/env bash
# Copies prepared files and folders to a bucket or another folder, and verifies the copies.
# Nothing is deleted unless told; the same command goes on after a stop.
set -euo pipefail

if [ $# -eq 0 ]; then
    echo "usage: $(basename "$0") [FLAGS] SOURCE... DESTINATION" >&2
    echo "  SOURCE       a file, or a folder with all it holds: \$STORAGE/converted/PART" >&2
    echo "  DESTINATION  gs://bucket/folder or any folder; each SOURCE keeps its name there" >&2
    echo "  FLAGS        --checksum --overwrite --dry_run --delete_source --threads N, or --help" >&2
    echo "example: $(basename "$0") output/converted/part_* gs://bucket/converted" >&2
    exit 2
fi
# TensorFlow computes nothing here: its notes on how it would would bury the progress bar.
export TF_CPP_MIN_LOG_LEVEL=${TF_CPP_MIN_LOG_LEVEL:-2}
export TF_ENABLE_ONEDNN_OPTS=${TF_ENABLE_ONEDNN_OPTS:-0}
exec "${PYTHON:-python}" -m tpudet.detection.commands.upload "$@"
