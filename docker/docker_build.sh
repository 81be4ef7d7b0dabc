#!/usr/bin/env bash
# Builds the image tpudet:cuda (default) or tpudet:cpu.
set -euo pipefail

usage() {
    cat <<END
usage: $(basename "$0") [cuda|cpu] [FLAGS of docker build]
  cuda  for NVIDIA GPUs, some 9 GB (an estimate); the host needs the driver, nothing of CUDA
  cpu   for any machine, about 3 GB
examples:
  $(basename "$0") cpu --build-arg PYTHON_VERSION=3.13
  $(basename "$0") cpu --build-arg BASE_IMAGE=registry.example/python:3.12
END
}

for argument in "$@"; do
    if [[ $argument == --help || $argument == -h ]]; then
        usage
        exit 0
    fi
done
extra=cuda
if [ $# -gt 0 ] && [[ $1 != -* ]]; then
    extra=$1
    shift
fi
if [[ $extra != cuda && $extra != cpu ]]; then
    echo "$(basename "$0"): there is no image $extra" >&2
    usage >&2
    exit 2
fi
if ! command -v docker >/dev/null; then
    echo "docker is not installed. Without it: pip install '.[$extra,cluster]' in a virtual" \
        "environment, then tpudet predict" >&2
    exit 2
fi
# BuildKit, a plugin, reads Dockerfile.dockerignore, which keeps data and models out of the context.
if ! docker buildx version >/dev/null 2>&1; then
    echo "docker has no buildx here: install docker-buildx-plugin, or docker-buildx beside Debian's" \
        "docker.io" >&2
    exit 2
fi

root=$(cd "$(dirname "$0")/.." && pwd)
DOCKER_BUILDKIT=1 exec docker build --build-arg "EXTRA=$extra" --file "$root/docker/Dockerfile" \
    --tag "tpudet:$extra" "$@" "$root"
