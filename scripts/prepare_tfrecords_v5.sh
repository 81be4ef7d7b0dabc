#!/usr/bin/env bash
# usage: prepare_tfrecords_v5.sh --predictions FILE [FLAGS of tpudet prepare_tfrecords]
# Writes the TFRecords of preset v5, without group boxes, balanced, with pseudo-labels:
# $STORAGE/converted/v5_PART; run again, it resumes.
source "$(dirname "$0")/tpudet.sh" 0 "$@"
tpudet prepare_tfrecords v5 "$@"
