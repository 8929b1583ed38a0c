#!/bin/bash
# The daemon's image, sandkasten:<version> and sandkasten:latest, in the engine of DOCKER_HOST.
# The context is laid out below build/image: the wheel with the runner in it, and the wheels of the
# locked requirements for the Python that BASE has. The build itself has no network.
#   BASE=...  the image to start from: any with glibc and python3 (see deploy/Dockerfile)
#   --context lay the context out and stop
set -euo pipefail
cd "$(dirname "$0")/.."
here=$PWD
context=$here/build/image
python=.venv/bin/python
version=$("$python" -c 'import tomllib; print(tomllib.load(open("pyproject.toml", "rb"))["project"]["version"])')
base=${BASE:-$(sed -n 's/^ARG BASE=//p' deploy/Dockerfile)}

for program in sandkasten-runner sandkasten-launch sandkasten-unpack sandkasten-egress sandkasten-gate; do
    if [ ! -x "src/sandkasten_runtime/_bin/$program" ]; then
        echo "$program is not built: an image without it could make no sandbox" >&2
        echo "hint: make setup, or runner/build.sh" >&2
        exit 1
    fi
done

# The wheels must fit the Python inside, which need not be the one here.
if [ "${1:-}" = --context ]; then
    inside=${IMAGE_PYTHON:-$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')}
else
    inside=$(docker run --rm --network none --entrypoint python3 "$base" \
        -c 'import sys; print("%d.%d" % sys.version_info[:2])')
fi
machine=$(uname -m)

mkdir -p "$context"
exec 9>"$context/.lock"
flock 9
wheels=$context/wheels
stamp=$(cat requirements/{server,docker,agents,jwt,signatures,mcp,otel,postgres,image}.txt <(echo "$inside $machine") | sha256sum)
if [ "$(cat "$context/.wheels" 2>/dev/null)" != "$stamp" ]; then
    echo "fetching the locked wheels for Python $inside on $machine"
    rm -rf "$wheels" "$context/.wheels"
    # Each with its own: a wheel may be tagged for any glibc up to the one of Debian 12.
    platforms=()
    for libc in 2_36 2_35 2_34 2_31 2_28 2_27 2_24 2_17 2_12 2_5; do
        platforms+=(--platform "manylinux_${libc}_$machine")
    done
    platforms+=(--platform "manylinux2014_$machine")
    "$python" -m pip --disable-pip-version-check --no-input download --quiet --require-hashes \
        --only-binary :all: --implementation cp --python-version "$inside" "${platforms[@]}" \
        --dest "$wheels" -r requirements/server.txt -r requirements/docker.txt \
        -r requirements/agents.txt -r requirements/jwt.txt -r requirements/signatures.txt \
        -r requirements/mcp.txt -r requirements/otel.txt \
        -r requirements/postgres.txt -r requirements/image.txt
    echo "$stamp" >"$context/.wheels"
fi
# Ours are no part of the stamp: they are built anew each time.
rm -f "$wheels"/sandkasten_*.whl
"$python" scripts/distributions.py wheels "$wheels"
rm -rf "$context/requirements"
mkdir "$context/requirements"
cp requirements/{server,docker,agents,jwt,signatures,mcp,otel,postgres}.txt "$context/requirements/"
"$python" scripts/distributions.py installs server docker agents jwt signatures mcp otel postgres \
    kubernetes fly dagger >"$context/requirements/ours"
cp deploy/Dockerfile deploy/healthcheck.py "$context/"
printf '.lock\n.wheels\n' >"$context/.dockerignore"
[ "${1:-}" != --context ] || exit 0

# The old builder and the new one both take this file; where both are, either will do.
docker build --quiet --network none --build-arg BASE="$base" --build-arg VERSION="$version" \
    --tag "sandkasten:$version" --tag sandkasten:latest "$context" >/dev/null
echo "built sandkasten:$version (also sandkasten:latest) on $base"
