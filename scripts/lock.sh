#!/bin/bash
# Compiles the hashed requirements files from the pyproject.toml files, for every Python and platform at once,
# the locks of crates from runner/Cargo.toml, and the package-lock.json files. They hold names, versions and
# hashes, and no address: where packages come from is the business of whoever installs. It also writes
# requirements/packages.json, and prints what changed. Usage: scripts/lock.sh [--upgrade], or for some of the
# frameworks scripts/lock.sh --frameworks NAME…, or one kind with scripts/lock.sh --crates|--npm [--upgrade]
set -euo pipefail
cd "$(dirname "$0")/.."

tools=build/lock-tools
if [ ! -x "$tools/bin/uv" ]; then
    "${PYTHON:-/usr/bin/python3}" -m venv "$tools"
    "$tools/bin/pip" install --quiet --upgrade pip uv packaging
fi

# The requirements of other projects that extras bring, also through our own distributions.
needs() {
    mkdir -p build/needs
    python3 scripts/distributions.py needs "$@" >"build/needs/$*.in"
    echo "build/needs/$*.in"
}

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
    compile "frameworks/$1.txt" "${@:2}" "$(needs server "$1")" \
        "requirements/frameworks/$1.in"
}

# The crates of the runner, and these with those of the fuzzer: the same versions, unless --upgrade says otherwise.
crates() {
    local changes=--workspace
    [ "${1:-}" != --upgrade ] || changes=
    scripts/cargo.sh update --quiet $changes
    grep -v '^source = ' build/runner-dev/manifest/Cargo.lock >build/crates.lock
    mv build/crates.lock runner/crates.lock
    RUNNER_FUZZ=1 CARGO_TARGET_DIR=$PWD/build/fuzz runner/cargo.sh update --quiet $changes
    grep -v '^source = ' build/fuzz/manifest/Cargo.lock >build/crates.lock
    mv build/crates.lock runner/fuzz/crates.lock
}

npm_packages() {
    local verb=install
    [ "${1:-}" != --upgrade ] || verb=update
    for place in dashboard sdks/typescript examples/typescript; do
        (cd "$place" && npm "$verb" --package-lock-only --ignore-scripts --silent)
    done
}

trap '[ $? != 0 ] || "$tools/bin/python" scripts/dependencies.py' EXIT

case ${1:-} in
    --crates) crates "${@:2}"; exit ;;
    --npm) npm_packages "${@:2}"; exit ;;
    --frameworks) for name in "${@:2}"; do framework "$name"; done; exit ;;
esac

# One resolution decides every version; the others are cut out of it, so that any two of these
# files can be installed together.
compile dev.txt "${@}" "$(needs server build docker e2b modal agents jwt signatures otel postgres mcp genkit dev)" \
    requirements/wheels.in
compile server.txt "$(needs server)" --constraint requirements/dev.txt
compile build.txt "$(needs build)" --constraint requirements/dev.txt
compile docker.txt "$(needs docker)" --constraint requirements/dev.txt
compile kubernetes.txt "$(needs kubernetes)" --constraint requirements/dev.txt
compile e2b.txt "$(needs e2b)" --constraint requirements/dev.txt
compile fly.txt "$(needs fly)" --constraint requirements/dev.txt
compile modal.txt "$(needs modal)" --constraint requirements/dev.txt
compile agents.txt "$(needs agents)" --constraint requirements/dev.txt
compile tools.txt "$(needs tools)" --constraint requirements/dev.txt
compile jwt.txt "$(needs jwt)" --constraint requirements/dev.txt
compile signatures.txt "$(needs signatures)" --constraint requirements/dev.txt
compile secrets.txt "$(needs secrets)" --constraint requirements/dev.txt
compile otel.txt "$(needs otel)" --constraint requirements/dev.txt
compile postgres.txt "$(needs postgres)" --constraint requirements/dev.txt
compile mcp.txt "$(needs mcp)" --constraint requirements/dev.txt
compile genkit.txt "$(needs genkit)" --constraint requirements/dev.txt
compile wheels.txt requirements/wheels.in --constraint requirements/dev.txt
compile image.txt requirements/image.in
compile bench.txt "$(needs bench)" --constraint requirements/dev.txt
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
compile dagger.txt "$(needs dagger)" --no-strip-extras
compile previews.txt requirements/previews.in
compile go.txt requirements/go.in
compile s3-server.txt requirements/s3-server.in
compile streamlit.txt requirements/streamlit.in --constraint requirements/dev.txt
crates "$@"
# It also adds packages of other platforms, and a changed lock of the dashboard requires `make dashboard`.
[ "${1:-}" != --upgrade ] || npm_packages --upgrade
