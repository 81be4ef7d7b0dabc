#!/usr/bin/env bash
# usage: export_fold.sh PART VERSION FOLD STEP [RES] [FLAGS of tpudet export]
# Exports a checkpoint of $STORAGE/saved/VERSION-PART-fold_FOLD; arguments as export_saved_model.sh.
# example: export_fold.sh part_0 quickstart 0 best 640
source "$(dirname "$0")/tpudet.sh" 4 "$@"
[[ $3 =~ ^[0-9]+$ ]] || usage
exec "$(dirname "$0")/export_saved_model.sh" "$1-fold_$3" "$2" "${@:4}"
