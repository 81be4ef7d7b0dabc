#!/bin/sh
# `python inference.py ...` finds the toolkit's scripts by name, whatever the working directory is.
set -eu
scripts=${TPUDET_SCRIPTS:-/opt/tpudet/scripts}
find_script() { # NAME: prints the path of the script, or the name where there is none
    for folder in "$scripts/inference" "$scripts"; do
        if [ ! -e "$1" ] && [ -f "$folder/$1" ]; then
            echo "$folder/$1"
            return
        fi
    done
    echo "$1"
}
case "${1:-}" in
    python | python3)
        if [ $# -ge 2 ]; then
            interpreter=$1
            script=$(find_script "$2")
            shift 2
            set -- "$interpreter" "$script" "$@"
        fi
        ;;
    *.sh | *.py)
        script=$(find_script "$1")
        shift
        set -- "$script" "$@"
        ;;
esac
exec "$@"
