#!/usr/bin/env bash
# usage: prepare_tfrecords_v4.sh --predictions FILE [FLAGS of tpudet prepare_tfrecords]
# Writes the TFRecords of preset v4, without group boxes, with pseudo-labels:
# $STORAGE/converted/v4_PART; run again, it resumes.
source "$(dirname "$0")/tpudet.sh" 0 "$@"
tpudet prepare_tfrecords v4 "$@"
