#!/usr/bin/env bash
# usage: train_on_dataset.sh PART VERSION [FLAGS of tpudet train]
# Trains VERSION on $STORAGE/converted/PART into $STORAGE/saved/VERSION-PART; run again, it resumes.
# example: train_on_dataset.sh bccd quickstart --set train.total_steps=500
source "$(dirname "$0")/tpudet.sh" 2 "$@"
tpudet train --config "$2" --model_dir "$storage/saved/$2-$1" --log_file "$logs/$2-$1.log" \
    --set "data.directory=$storage/converted/$1" "${@:3}"
