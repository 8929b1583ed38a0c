#!/bin/bash
# Compiles the hashed requirements files from pyproject.toml, for every Python and platform at once.
# They hold names, versions and hashes, and no address: where packages come from is the business
# of whoever installs. Usage: scripts/lock.sh [--upgrade], or for some of the frameworks
# scripts/lock.sh --frameworks NAME…
set -euo pipefail
cd "$(dirname "$0")/.."

tools=build/lock-tools
if [ ! -x "$tools/bin/uv" ]; then
    "${PYTHON:-/usr/bin/python3}" -m venv "$tools"
    "$tools/bin/pip" install --quiet uv
fi

compile() {
    local out=requirements/$1
    shift
    "$tools/bin/uv" pip compile --quiet --universal --python-version 3.11 --generate-hashes \
        --no-annotate --no-header --no-emit-index-url --no-emit-find-links --no-cache \
        --output-file "$out" "$@"
    echo "locked $out: $(grep -c '==' "$out") packages"
}

# Each framework has an environment of its own, with the engine and what its tests need. Frameworks
# disagree on versions, so these are no part of the one resolution below.
framework() {
    compile "frameworks/$1.txt" "${@:2}" pyproject.toml --extra server --extra "$1" \
        "requirements/frameworks/$1.in"
}

if [ "${1:-}" = --frameworks ]; then
    for name in "${@:2}"; do framework "$name"; done
    exit
fi

# One resolution decides every version; the others are cut out of it, so that any two of these
# files can be installed together.
compile dev.txt "${@}" pyproject.toml --extra server --extra docker --extra e2b --extra modal \
    --extra agents --extra jwt --extra signatures --extra otel --extra postgres --extra mcp --extra genkit --extra dev requirements/build.in
compile server.txt pyproject.toml --extra server --constraint requirements/dev.txt
compile docker.txt pyproject.toml --extra docker --constraint requirements/dev.txt
compile kubernetes.txt pyproject.toml --extra kubernetes --constraint requirements/dev.txt
compile e2b.txt pyproject.toml --extra e2b --constraint requirements/dev.txt
compile fly.txt pyproject.toml --extra fly --constraint requirements/dev.txt
compile modal.txt pyproject.toml --extra modal --constraint requirements/dev.txt
compile agents.txt pyproject.toml --extra agents --constraint requirements/dev.txt
compile jwt.txt pyproject.toml --extra jwt --constraint requirements/dev.txt
compile signatures.txt pyproject.toml --extra signatures --constraint requirements/dev.txt
compile secrets.txt pyproject.toml --extra secrets --constraint requirements/dev.txt
compile otel.txt pyproject.toml --extra otel --constraint requirements/dev.txt
compile postgres.txt pyproject.toml --extra postgres --constraint requirements/dev.txt
compile mcp.txt pyproject.toml --extra mcp --constraint requirements/dev.txt
compile genkit.txt pyproject.toml --extra genkit --constraint requirements/dev.txt
compile build.txt requirements/build.in --constraint requirements/dev.txt
compile image.txt requirements/image.in
compile bench.txt pyproject.toml --extra bench --constraint requirements/dev.txt
compile llm-sandbox.txt requirements/llm-sandbox.in --constraint requirements/dev.txt \
    --constraint requirements/bench.txt
compile docs.txt requirements/docs.in --constraint requirements/dev.txt
# In environments of their own: an example, and a client that has the name of ours.
compile examples.txt requirements/examples.in --constraint requirements/dev.txt
compile compat.txt requirements/compat.in --constraint requirements/dev.txt \
    --constraint requirements/examples.txt
for wanted in requirements/frameworks/*.in; do
    framework "$(basename "$wanted" .in)" "${@}"
done
# Also in an environment of its own: its GraphQL library excludes the one that tests of the API need.
compile dagger.txt pyproject.toml --extra dagger --no-strip-extras
compile previews.txt requirements/previews.in
compile go.txt requirements/go.in
compile s3-server.txt requirements/s3-server.in
compile streamlit.txt requirements/streamlit.in --constraint requirements/dev.txt
