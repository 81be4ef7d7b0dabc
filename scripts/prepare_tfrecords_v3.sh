#!/usr/bin/env bash
# usage: prepare_tfrecords_v3.sh [FLAGS of tpudet prepare_tfrecords]
# Writes the TFRecords of preset v3, without group boxes, balanced:
# $STORAGE/converted/v3_PART; run again, it resumes.
source "$(dirname "$0")/tpudet.sh" 0 "$@"
tpudet prepare_tfrecords v3 "$@"
