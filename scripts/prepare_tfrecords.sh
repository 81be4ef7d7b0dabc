#!/usr/bin/env bash
# Writes the TFRecords of PRESET: $STORAGE/converted/PRESET_PART for each of its parts.
# Reads what prepare_datasets.sh made; a run that was killed goes on with the same command.
set -euo pipefail

if [ $# -lt 1 ] || [[ $1 == -* && $1 != --help ]]; then
    echo "usage: $(basename "$0") PRESET [FLAGS]   (--help lists them)" >&2
    echo "  PRESET   v1 to v5: plain, no crowds, balanced, pseudo-labels, both; defined in" >&2
    echo "           configs/open_images/presets.yaml" >&2
    echo "  DATA     folder of the pictures, in train/, validation/ and test/ (data)" >&2
    echo "  STORAGE  local folder or gs://bucket (output)" >&2
    echo "example: $(basename "$0") v3 --parts part_0 --dry_run" >&2
    exit 2
fi
# It computes nothing, and TensorFlow's notes on how it would compute would bury the progress bars.
export TF_CPP_MIN_LOG_LEVEL=${TF_CPP_MIN_LOG_LEVEL:-2} TF_ENABLE_ONEDNN_OPTS=${TF_ENABLE_ONEDNN_OPTS:-0}

exec "${PYTHON:-python}" -m tpudet.detection.commands.prepare_tfrecords "$@"
