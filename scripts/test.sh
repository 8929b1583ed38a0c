#!/bin/bash
# Lint, the runner's own tests, then pytest; every phase runs and is timed, any failure fails all.
# SANDKASTEN_LONG=1 asks for full sizes. Arguments go to pytest.
set -uo pipefail
cd "$(dirname "$0")/.."
summary=()
status=0

phase() {
    local name=$1 began=$SECONDS
    shift
    printf '\n== %s ==\n' "$name"
    if "$@"; then
        summary+=("$(printf '%-12s ok      %4d s' "$name" $((SECONDS - began)))")
    else
        summary+=("$(printf '%-12s FAILED  %4d s' "$name" $((SECONDS - began)))")
        status=1
    fi
}

rust_tests() {
    scripts/cargo.sh test --quiet \
        --config 'source.crates-io.replace-with="debian"' \
        --config 'source.debian.directory="/usr/share/cargo/registry"'
}

# Bootstrapping a Debian takes longer than a test may, so it is done before any begins.
images() {
    .venv/bin/python -m tests.prepare
}

phase lint scripts/lint.sh python rust
phase runner rust_tests
phase images images
# Full sizes take as long as they take; the everyday ones must not hang a run.
limits=()
[ "${SANDKASTEN_LONG:-}" = 1 ] && limits=(-o timeout=3600)
phase pytest .venv/bin/python -m pytest --hostwatch --durations=15 --durations-min=1 \
    "${limits[@]}" "$@" </dev/null

printf '\n'
printf '%s\n' "${summary[@]}"
exit $status
