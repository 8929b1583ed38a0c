#!/bin/bash
# The images sandboxes are made from, sandbox-runtime:base, :python and :node, in the engine of
# DOCKER_HOST.
#   BASE=...     the Debian or Ubuntu to start from (see images/base/Dockerfile)
#   OFFLINE=1    build without a network: what the base lacks is fetched by this machine's apt, which
#                must be of the same release. The packages' archives then stay in a layer.
# Arguments are the images wanted; without any, all three in order.
set -euo pipefail
cd "$(dirname "$0")/.."

packages_of() {
    sed -n 's/^ARG PACKAGES="\(.*\)"$/\1/p' "images/$1/Dockerfile"
}

build() {
    local name=$1 base=$2 context=build/images/$1
    local arguments=(--build-arg BASE="$base")
    rm -rf "$context"
    mkdir -p "$context"
    cp "images/$name/Dockerfile" "$context/"
    if [ "${OFFLINE:-}" = 1 ]; then
        local packages
        read -ra packages <<<"$(packages_of "$name")"
        scripts/image_debs.sh "$base" "$context/debs" "${packages[@]}"
        arguments+=(--network none)
    fi
    docker build --quiet "${arguments[@]}" --tag "sandbox-runtime:$name" "$context" >/dev/null
    echo "built sandbox-runtime:$name on $base"
}

mkdir -p build/images
exec 9>build/images/.lock
flock 9
[ $# -gt 0 ] || set -- base python node
for name in "$@"; do
    case $name in
        base) build base "${BASE:-$(sed -n 's/^ARG BASE=//p' images/base/Dockerfile)}" ;;
        python | node) build "$name" sandbox-runtime:base ;;
        *) echo "images.sh: there is no image $name" >&2; exit 2 ;;
    esac
done
