#!/usr/bin/env bash
# Writes the submission of every predictions file in $STORAGE/predictions beside it; those that are
# there already are left alone, so the same command goes on after a stop.
set -euo pipefail

if [ $# -gt 0 ] && { [[ $1 != -* ]] || [[ $1 == -h ]] || [[ $1 == --help ]]; }; then
    echo "usage: $(basename "$0") [FLAGS of gen_sub.py]" >&2
    echo "  reads    \$STORAGE/predictions/*.parquet and *.pkl; parts that are yet to be joined" >&2
    echo "           (join_predicted_parts.py) are passed over" >&2
    echo "  FLAGS    --classes CSV, --hierarchy JSON; -f makes all anew" >&2
    echo "  STORAGE  local folder (output)" >&2
    echo "exit codes: 0 done, 1 some could not be made, 2 wrong arguments or nothing to do it with" >&2
    echo "example: $(basename "$0") --hierarchy data/challenge-2019-label500-hierarchy.json" >&2
    exit 2
fi
storage=${STORAGE:-output}
folder=${storage%/}/predictions
force=
for argument in "$@"; do
    case $argument in
        -f | --force) force=yes ;;
        --out | --out=*)
            echo "$(basename "$0"): --out is for one file; each submission lies beside its own" >&2
            exit 2
            ;;
    esac
done

shopt -s nullglob
found=0
failed=0
for source in "$folder"/*.parquet "$folder"/*.pkl; do
    found=$((found + 1))
    target=${source%.*}.csv
    if [[ $source =~ (_part_[0-9]+_of_[0-9]+|-[0-9]{5}-of-[0-9]{5})\.[a-z]+$ ]]; then
        echo "$source: passed over, a part of a whole" >&2
    elif [[ $source == *.pkl ]] && [ -e "${source%.pkl}.parquet" ]; then
        echo "$source: passed over, $target is made of ${source%.pkl}.parquet" >&2
    elif [ -e "$target" ] && [ -z "$force" ] && [ "$source" -nt "$target" ]; then
        echo "$source: newer than $target; -f makes all anew" >&2
        failed=$((failed + 1))
    elif [ -e "$target" ] && [ -z "$force" ]; then
        echo "$target is there already"
    else
        code=0
        "${PYTHON:-python}" -m tpudet.detection.commands.gen_sub "$source" "$@" || code=$?
        if [ $code -gt 1 ]; then
            exit $code
        fi
        failed=$((failed + code))
    fi
done
if [ $found -eq 0 ]; then
    echo "$(basename "$0"): no *.parquet or *.pkl in $folder" >&2
    exit 2
fi
if [ $failed -gt 0 ]; then
    echo "$(basename "$0"): $failed of $found files have no submission that is up to date" >&2
    exit 1
fi
