#!/usr/bin/env bash
# Exports the checkpoint STEP of VERSION trained on PART as a SavedModel.
# Reads $STORAGE/saved/VERSION-PART, writes $STORAGE/final/VERSION-PART-RES.
set -euo pipefail

if [ $# -lt 3 ] || [[ $1 == -* ]] || [[ $2 == -* ]] || [[ $3 == -* ]]; then
    echo "usage: $(basename "$0") PART VERSION STEP [RES] [FLAGS of python -m tpudet.detection.commands.export]" >&2
    echo "  STEP     step number of a kept checkpoint, latest or best" >&2
    echo "  RES      canvas side in pixels, or HEIGHTxWIDTH (that of training)" >&2
    echo "  STORAGE  local folder or gs://bucket (output)" >&2
    echo "example: $(basename "$0") bccd quickstart best 640" >&2
    exit 2
fi
part=$1 version=$2 step=$3
shift 3
resolution=
if [ $# -gt 0 ] && [[ $1 != -* ]]; then
    resolution=$1
    shift
fi
storage=${STORAGE:-output}
storage=${storage%/}

exec "${PYTHON:-python}" -m tpudet.detection.commands.export \
    --model_dir "$storage/saved/$version-$part" \
    --export_root "$storage/final" \
    --step "$step" \
    --resolution "$resolution" \
    "$@"
