#!/usr/bin/env bash
# usage: train_on_fold.sh PART VERSION FOLD [FLAGS of tpudet train]
# Trains VERSION on $STORAGE/converted/PART_fold_FOLD into $STORAGE/saved/VERSION-PART-fold_FOLD and
# evaluates it on the validation images of the fold; run again, it resumes.
# example: train_on_fold.sh part_0 quickstart 0 --set train.total_steps=500
source "$(dirname "$0")/tpudet.sh" 3 "$@"
[[ $3 =~ ^[0-9]+$ ]] || usage
exec "$(dirname "$0")/train_on_dataset.sh" "$1_fold_$3" "$2" \
    --model_dir "$storage/saved/$2-$1-fold_$3" "${@:4}"
