#!/usr/bin/env bash
# Builds the image tpudet:cuda (default) or tpudet:cpu.
set -euo pipefail

usage() {
    echo "usage: $(basename "$0") [cuda|cpu] [FLAGS of docker build]" >&2
    echo "  cuda  for NVIDIA GPUs, about 9 GB; the host needs the driver, nothing of CUDA" >&2
    echo "  cpu   for any machine, about 3 GB" >&2
    echo "example: $(basename "$0") cpu --build-arg PYTHON_VERSION=3.13" >&2
    exit 2
}

extra=cuda
if [ $# -gt 0 ] && [[ $1 != --* ]]; then
    extra=$1
    shift
fi
[[ $extra == cuda || $extra == cpu ]] || usage
if ! command -v docker >/dev/null; then
    echo "docker is not installed. Without it: pip install '.[$extra,cluster]' in a virtual" \
        "environment, then tpudet predict" >&2
    exit 2
fi

root=$(cd "$(dirname "$0")/.." && pwd)
# BuildKit reads Dockerfile.dockerignore, which keeps data and models out of the context.
DOCKER_BUILDKIT=1 exec docker build --build-arg "EXTRA=$extra" --file "$root/docker/Dockerfile" \
    --tag "tpudet:$extra" "$@" "$root"
