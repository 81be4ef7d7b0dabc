#!/usr/bin/env bash
# usage: prepare_folds.sh FOLD [FLAGS of tpudet prepare_folds]
# Writes fold FOLD, 0 to 4, of every part: $STORAGE/converted/PART_fold_FOLD; run again, it resumes.
# example: prepare_folds.sh 0 --parts part_0 --dry_run
source "$(dirname "$0")/tpudet.sh" 1 "$@"
tpudet prepare_folds "$@"
