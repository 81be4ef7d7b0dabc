#!/usr/bin/env bash
# usage: prepare_datasets.sh [FLAGS of tpudet prepare_datasets]
# Prepares class groups, box CSVs and validation sets from the files of the challenge in $DATA:
# $STORAGE/prepared; run again, it resumes.
# example: DATA=/mnt/open_images prepare_datasets.sh --num_samples 5
source "$(dirname "$0")/tpudet.sh" 0 "$@"
[[ ${1:--} == -* ]] || usage
tpudet prepare_datasets "$@"
