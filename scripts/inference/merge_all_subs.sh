#!/usr/bin/env bash
# Merges, part by part, the submissions of all models and folds that were trained on the part:
# $STORAGE/predictions/*.csv -> $STORAGE/merged/PART.csv. Models of different parts know different
# classes, so the merged parts are then joined, in $STORAGE/merged/joined.csv.
set -euo pipefail

name=$(basename "$0")
parts=()
while [ $# -gt 0 ] && [[ $1 != -* ]]; do
    parts+=("$1")
    shift
done
if [ $# -gt 0 ] && { [[ $1 == -h ]] || [[ $1 == --help ]]; }; then
    echo "usage: $name [PART...] [FLAGS of merge_subs.py]" >&2
    echo "  PART     whose submissions: those with the name PART, v1_PART, .. or PART_fold_0, .." >&2
    echo "           between hyphens, as in retinanet-v3_part_0-fold_2-640.csv" >&2
    echo "           (human_parts part_0 .. part_4, as far as there are any, and these are joined)" >&2
    echo "  FLAGS    --method, --iou, ..; -f makes all anew" >&2
    echo "  STORAGE  local folder (output)" >&2
    echo "exit codes: 0 done, 1 something is out of date, 2 wrong arguments or unusable files" >&2
    echo "example: $name part_0 part_1 --method wbf --iou 0.55" >&2
    exit 2
fi
storage=${STORAGE:-output}
folder=${storage%/}/predictions
merged=${storage%/}/merged
force=
for argument in "$@"; do
    [[ $argument == -f || $argument == --force ]] && force=-f
done
out_of_date=0

# is_made TARGET SOURCE...: whether there is a target that is to be left alone
is_made() {
    local target=$1 source
    shift
    [ -e "$target" ] && [ -z "$force" ] || return 1
    for source in "$@"; do
        if [ "$source" -nt "$target" ]; then
            echo "$target: older than $source; -f makes all anew" >&2
            out_of_date=1
            return 0
        fi
    done
    echo "$target is there already"
}

# is_of PART FILE: whether a submission's name says that it is of the part
is_of() {
    local fields field
    IFS=- read -ra fields <<<"$(basename "$2" .csv)"
    for field in "${fields[@]}"; do
        if [[ $field =~ ^(v[0-9]+_)?$1(_fold_[0-9]+)?$ ]]; then
            return 0
        fi
    done
    return 1
}

named=${#parts[@]}
if [ "$named" -eq 0 ]; then
    parts=(human_parts part_0 part_1 part_2 part_3 part_4)
fi
shopt -s nullglob
files=("$folder"/*.csv)
results=()
used=()
for part in "${parts[@]}"; do
    if [[ ! $part =~ ^[A-Za-z0-9_]+$ ]]; then
        echo "$name: PART '$part' may hold only letters, digits and underscores" >&2
        exit 2
    fi
    sources=()
    for file in "${files[@]}"; do
        if is_of "$part" "$file"; then
            sources+=("$file")
        fi
    done
    if [ ${#sources[@]} -eq 0 ]; then
        if [ "$named" -gt 0 ]; then
            echo "$name: no submission of $part in $folder" >&2
            exit 2
        fi
        continue
    fi
    used+=("${sources[@]}")
    target=$merged/$part.csv
    results+=("$target")
    if ! is_made "$target" "${sources[@]}"; then
        mkdir -p "$merged"
        "${PYTHON:-python}" -m tpudet.detection.commands.merge_subs "$target" "${sources[@]}" "$@"
    fi
done
if [ ${#results[@]} -eq 0 ]; then
    echo "$name: no submission in $folder has a part in its name; see --help" >&2
    exit 2
fi
if [ "$named" -eq 0 ] && [ ${#used[@]} -lt ${#files[@]} ]; then
    echo "passed over, no part in their names:" >&2
    printf '%s\n' "${files[@]}" | grep -vxF -f <(printf '%s\n' "${used[@]}") >&2
fi
if [ "$named" -eq 0 ] && [ ${#results[@]} -gt 1 ] && ! is_made "$merged/joined.csv" "${results[@]}"; then
    "${PYTHON:-python}" -m tpudet.detection.commands.join_subs $force "$merged/joined.csv" "${results[@]}"
fi
exit $out_of_date
