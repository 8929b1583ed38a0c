#!/bin/bash
# Run cargo on the runner for tests and linters. What it builds is in build/runner-dev.
set -euo pipefail
cd "$(dirname "$0")/.."
exec env -u RUNNER_RUSTFLAGS CARGO_TARGET_DIR="$PWD/build/runner-dev" runner/cargo.sh "$@"
