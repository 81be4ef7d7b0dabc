#!/usr/bin/env bash
# usage: export_saved_model.sh PART VERSION STEP [RES] [FLAGS of tpudet export]
# Exports a checkpoint of $STORAGE/saved/VERSION-PART as $STORAGE/final/VERSION-PART-RES.
# STEP is the number of a kept checkpoint, latest or best; RES the side of the canvas in pixels, or
# HEIGHTxWIDTH (that of training).
# example: export_saved_model.sh bccd quickstart best 640
source "$(dirname "$0")/tpudet.sh" 3 "$@"
resolution=()
[[ ${4:--} == -* ]] || resolution=(--resolution "$4")
tpudet export --model_dir "$storage/saved/$2-$1" --export_root "$storage/final" --step "$3" \
    ${resolution[@]+"${resolution[@]}"} "${@:4 + ${#resolution[@]} / 2}"
