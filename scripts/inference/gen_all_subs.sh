#!/usr/bin/env bash
# usage: gen_all_subs.sh [FLAGS of tpudet gen_all_subs]
# Writes the submission of every predictions file in $STORAGE/predictions.
# example: gen_all_subs.sh --hierarchy data/challenge-2019-label500-hierarchy.json
source "$(dirname "$0")/../tpudet.sh" 0 "$@"
tpudet gen_all_subs "$@"
