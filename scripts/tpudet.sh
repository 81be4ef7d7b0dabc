# shellcheck shell=bash disable=SC2034  # the variables are for the scripts
# `source tpudet.sh NUMBER "$@"` begins every script here: it prints the script's first comment as
# the usage message for --help and unless NUMBER arguments precede the flags, sets $storage and
# $logs, and defines `tpudet`, which ends the script with that command.
set -euo pipefail

usage() {
    sed -n '2,${/^#/!q;s/^# \{0,1\}//p}' "$0" >&2
    exit 2
}

tpudet() {
    local python=${PYTHON:-python}
    if ! "$python" -c 'import tpudet' >/dev/null 2>&1; then
        echo "tpudet is not installed in $python; run \`make install\`, then \`. .venv/bin/activate\`" >&2
        exit 2
    fi
    exec "$python" -m tpudet "$@"
}

storage=${STORAGE:-output}
storage=${storage%/}
# The log stays on this machine when the storage is a bucket.
logs=$storage/logs
[[ $storage == *://* ]] && logs=output/logs
for ((number = 2; number <= $1 + 1; number++)); do
    case ${!number:--} in
    -h | --help) (usage) 2>&1 || exit 0 ;; # asked for, so no error
    -*) usage ;;
    esac
done
