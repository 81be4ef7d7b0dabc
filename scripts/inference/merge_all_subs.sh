#!/usr/bin/env bash
# usage: merge_all_subs.sh [PART...] [FLAGS of tpudet merge_all_subs]
# Merges the submissions of each part in $STORAGE/predictions, then joins the parts.
# example: merge_all_subs.sh part_0 part_1 --method wbf --iou 0.55
source "$(dirname "$0")/../tpudet.sh" 0 "$@"
tpudet merge_all_subs "$@"
