#!/usr/bin/env bash
# Trains VERSION on the data set PART and evaluates it; the same command goes on after a stop.
# Reads $STORAGE/converted/PART, writes $STORAGE/saved/VERSION-PART.
set -euo pipefail

if [ $# -lt 2 ] || [[ $1 == -* ]] || [[ $2 == -* ]]; then
    echo "usage: $(basename "$0") PART VERSION [FLAGS of python -m tpudet.detection.commands.train]" >&2
    echo "  PART     folder under \$STORAGE/converted that make_tfrecords.py wrote" >&2
    echo "  VERSION  a config under configs/yaml: its stem, or what stands before its first _" >&2
    echo "  STORAGE  local folder or gs://bucket (output)" >&2
    echo "example: $(basename "$0") bccd quickstart --set train.total_steps=500" >&2
    exit 2
fi
part=$1 version=$2
shift 2
storage=${STORAGE:-output}
storage=${storage%/}
# The log stays on this machine when the storage is a bucket.
logs=$storage/logs
[[ $storage == *://* ]] && logs=output/logs

exec "${PYTHON:-python}" -m tpudet.detection.commands.train \
    --config "$version" \
    --model_dir "$storage/saved/$version-$part" \
    --log_file "$logs/$version-$part.log" \
    --set "data.directory=$storage/converted/$part" \
    "$@"
