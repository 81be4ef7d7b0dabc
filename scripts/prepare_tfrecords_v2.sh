#!/usr/bin/env bash
# usage: prepare_tfrecords_v2.sh [FLAGS of tpudet prepare_tfrecords]
# Writes the TFRecords of preset v2, without group boxes:
# $STORAGE/converted/v2_PART; run again, it resumes.
source "$(dirname "$0")/tpudet.sh" 0 "$@"
tpudet prepare_tfrecords v2 "$@"
