#!/usr/bin/env bash
# Makes class groups, filtered box CSVs and validation sets of the Open Images challenge's files.
# Reads $DATA, writes $STORAGE/prepared; a run that was killed goes on with the same command.
set -euo pipefail

if [ $# -gt 0 ] && [[ $1 != -* ]]; then
    echo "usage: $(basename "$0") [FLAGS]   (--help lists them; --dry_run lists the steps)" >&2
    echo "  DATA     folder of the challenge's CSVs and of train/ and validation/ (data)" >&2
    echo "  STORAGE  local folder or gs://bucket (output)" >&2
    echo "example: DATA=/mnt/open_images $(basename "$0") --num_samples 5" >&2
    exit 2
fi
# It computes nothing, and TensorFlow's notes on how it would compute would bury the progress bars.
export TF_CPP_MIN_LOG_LEVEL=${TF_CPP_MIN_LOG_LEVEL:-2} TF_ENABLE_ONEDNN_OPTS=${TF_ENABLE_ONEDNN_OPTS:-0}

exec "${PYTHON:-python}" -m tpudet.detection.commands.prepare_datasets "$@"
