#!/usr/bin/env bash
# usage: upload_files_to_gcs.sh [FLAGS of tpudet upload] SOURCE... DESTINATION
# Copies prepared files and folders to gs://bucket/folder or any folder and verifies the copies.
# example: upload_files_to_gcs.sh output/converted/part_* gs://bucket/converted
source "$(dirname "$0")/tpudet.sh" 0 "$@"
[ $# -gt 0 ] || usage
tpudet upload "$@"
