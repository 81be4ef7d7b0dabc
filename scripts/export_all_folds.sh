#!/usr/bin/env bash
# usage: export_all_folds.sh [FLAGS of tpudet export_models]
# Exports the best checkpoint of every $STORAGE/saved/VERSION-PART-fold_FOLD.
# example: export_all_folds.sh --step latest
source "$(dirname "$0")/tpudet.sh" 0 "$@"
tpudet export_models --all_folds "$@"
