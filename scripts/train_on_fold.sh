#!/usr/bin/env bash
# Trains VERSION on fold FOLD of PART and evaluates it on the fold's own validation images; the
# same command goes on after a stop.
# Reads $STORAGE/converted/PART_fold_FOLD, writes $STORAGE/saved/VERSION-PART-fold_FOLD.
set -euo pipefail

if [ $# -lt 3 ] || [[ $1 == -* ]] || [[ $2 == -* ]] || [[ ! $3 =~ ^[0-9]+$ ]]; then
    echo "usage: $(basename "$0") PART VERSION FOLD [FLAGS of python -m tpudet.detection.commands.train]" >&2
    echo "  PART     human_parts, part_0, ..: what prepare_folds.sh wrote" >&2
    echo "  VERSION  a config under configs/yaml: its stem, or what stands before its first _" >&2
    echo "  FOLD     number of the fold, from 0" >&2
    echo "  STORAGE  local folder or gs://bucket (output)" >&2
    echo "example: $(basename "$0") part_0 quickstart 0 --set train.total_steps=500" >&2
    exit 2
fi
part=$1 version=$2 fold=$3
shift 3
storage=${STORAGE:-output}
# The names of train_on_dataset.sh but for the `-` before `fold`; the flags win over its own.
exec "$(dirname "$0")/train_on_dataset.sh" "${part}_fold_$fold" "$version" \
    --model_dir "${storage%/}/saved/$version-$part-fold_$fold" "$@"
