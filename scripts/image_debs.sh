#!/bin/bash
# Fetches the packages that an image lacks, so that it can be built on without a network.
# Usage: image_debs.sh IMAGE FOLDER PACKAGE...
# This machine's apt answers, by the image's own list of what it has: both must be of one release.
set -euo pipefail
image=${1:?usage: image_debs.sh IMAGE FOLDER PACKAGE...}
mkdir -p "${2:?usage: image_debs.sh IMAGE FOLDER PACKAGE...}/partial"
folder=$(cd "$2" && pwd)
shift 2

status=$(mktemp)
trap 'rm -f "$status"' EXIT
docker run --rm --network none --user 0 --entrypoint cat "$image" /var/lib/dpkg/status >"$status"
apt-get -qq -o Dir::State::status="$status" -o Dir::Cache::archives="$folder" \
    -o APT::Sandbox::User=root -o Debug::NoLocking=1 \
    --no-install-recommends --yes --download-only install "$@"
rmdir "$folder/partial"
