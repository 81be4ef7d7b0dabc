#!/usr/bin/env bash
# Runs a command in the image as the calling user, on the caller's files.
# Paths mean inside what they mean outside: the working directory, $DATA, $STORAGE, $MODELS and
# $PREDICTIONS are mounted under their own names, the data and the models read-only unless they are
# the working directory, $STORAGE or $PREDICTIONS, to which a command may write.
set -euo pipefail

usage() {
    cat <<END
usage: $(basename "$0") COMMAND...
  DATA         folder with the data, test/ holds the images to predict (data)
  STORAGE      folder with final/ and predictions/, or gs://bucket (output)
  MODELS       folder with the SavedModels (\$STORAGE/final)
  PREDICTIONS  folder for the predictions (\$STORAGE/predictions)
  IMAGE        tpudet:cuda where nvidia-smi finds a GPU, else tpudet:cpu; docker_build.sh makes both
  DOCKER_FLAGS more flags of docker run, e.g. --network=host for a Ray cluster
Relative defaults start from the repository. SAVED_MODEL and the PREDICTIONS file of a command may
be in any of these folders or below the working directory.
examples:
  ./$(basename "$0") python inference.py predictions.parquet ../output/final/quickstart-bccd-640
  DATA=/mnt/data $(basename "$0") tpudet predict --models models.yml
END
}

fail() {
    echo "$(basename "$0"): $1" >&2
    exit 2
}

absolute() { # PATH that need not exist; that of a folder is the same however it is written
    local path=${1#./}
    case $path in
        *://*) echo "$path" ;;
        *) if [ -d "$path" ]; then (CDPATH='' cd -- "$path" && pwd); else
            [[ $path == /* ]] || path=$PWD/$path
            echo "${path%/}"
        fi ;;
    esac
}

mounted=:
mount() { # FOLDER [readonly]
    if [[ $1 == *://* ]] || [[ $mounted == *:"$1":* ]]; then return 0; fi
    [[ $1 != *,* ]] || fail "$1: docker cannot mount a folder with a comma in its name"
    [ "$1" != / ] || fail "cannot mount / over the image; call it from another directory"
    flags+=(--mount "type=bind,source=$1,target=$1${2:+,$2}")
    mounted+=$1:
}

if [ $# -eq 0 ]; then
    usage >&2
    exit 2
fi
if [ "$1" = --help ] || [ "$1" = -h ]; then
    usage
    exit 0
fi
command -v docker >/dev/null || fail "docker is not installed; tpudet predict runs without it too"

root=$(cd "$(dirname "$0")/.." && pwd)
data=$(absolute "${DATA:-$root/data}")
storage=$(absolute "${STORAGE:-$root/output}")
models=$(absolute "${MODELS:-$storage/final}")
predictions=$(absolute "${PREDICTIONS:-$storage/predictions}")
image=${IMAGE:-}
gpus=()
if command -v nvidia-smi >/dev/null && nvidia-smi --list-gpus >/dev/null 2>&1; then
    gpus=(--gpus all)
    image=${image:-tpudet:cuda}
fi
image=${image:-tpudet:cpu}
[[ $image != *cpu ]] || gpus=()

flags=(--rm --init --interactive)
if [ -t 0 ] && [ -t 1 ]; then flags+=(--tty); fi
flags+=(${gpus[@]+"${gpus[@]}"} --user "$(id -u):$(id -g)" --workdir "$PWD")
flags+=(--env "DATA=$data" --env "STORAGE=$storage" --env "USER=${USER:-user}")

# Folders that are named must be there; a default one that is not there is not mounted.
[ -z "${DATA:-}" ] || [[ $data == *://* ]] || [ -d "$data" ] || fail "DATA: no folder $data"
[ -z "${MODELS:-}" ] || [[ $models == *://* ]] || [ -d "$models" ] || fail "MODELS: no folder $models"
for folder in "$storage" "$predictions"; do # which the command may write to
    [[ $folder == *://* ]] || mkdir -p "$folder"
done
mount "$PWD"
mount "$storage"
mount "$predictions"
if [ -d "$data" ]; then mount "$data" readonly; fi
if [ -d "$models" ]; then mount "$models" readonly; fi
read -ra more <<<"${DOCKER_FLAGS:-}"

exec docker run "${flags[@]}" ${more[@]+"${more[@]}"} "$image" "$@"
