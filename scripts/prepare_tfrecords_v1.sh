#!/usr/bin/env bash
# usage: prepare_tfrecords_v1.sh [FLAGS of tpudet prepare_tfrecords]
# Writes the TFRecords of preset v1, all boxes as published:
# $STORAGE/converted/v1_PART; run again, it resumes.
source "$(dirname "$0")/tpudet.sh" 0 "$@"
tpudet prepare_tfrecords v1 "$@"
