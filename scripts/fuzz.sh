#!/bin/bash
# Fuzz the parsers of the runner with libFuzzer, each target for SECONDS (default 60).
#   fuzz.sh [SECONDS [TARGET]...]   what it finds is in build/fuzz, and fails it
#   fuzz.sh merge [TARGET]...       replace runner/fuzz/corpus by the fewest inputs that reach the same code
# Files of the corpus whose name is not a checksum are regressions and examples, which `merge` keeps.
set -euo pipefail
cd "$(dirname "$0")/.."
corpus=$PWD/runner/fuzz/corpus
work=$PWD/build/fuzz
declare -A programs=([frames]=runner [tar]=unpack [layer]=unpack [dns]=egress [hello]=egress [http]=egress [rules]=egress)

seconds=${1:-60}
targets=("${@:2}")
[ ${#targets[@]} -gt 0 ] || targets=("${!programs[@]}")

# What cargo-fuzz passes to rustc, without the sanitizers, which require a nightly one.
flags=(--cfg=fuzzing -Cpasses=sancov-module)
for option in level=4 inline-8bit-counters pc-table trace-compares; do
    flags+=("-Cllvm-args=-sanitizer-coverage-$option")
done
separator=$'\037'
RUNNER_RUSTFLAGS=$(printf "%s$separator" "${flags[@]}")
export RUNNER_RUSTFLAGS=${RUNNER_RUSTFLAGS%"$separator"}
wanted=()
for target in "${targets[@]}"; do
    wanted+=(--bin "sandkasten-${programs[$target]:?there is no target $target}")
done
RUNNER_FUZZ=1 CARGO_TARGET_DIR=$work runner/cargo.sh build --quiet --profile fuzz "${wanted[@]}"

# Trees of layers are made in memory.
TMPDIR=$(mktemp -d -p /dev/shm)
export TMPDIR
trap 'rm -rf "$TMPDIR"' EXIT
failed=()
for target in "${targets[@]}"; do
    program=$(echo "$work"/*/fuzz/sandkasten-"${programs[$target]}")
    export SANDKASTEN_FUZZ_TARGET=$target
    mkdir -p "$work/inputs/$target"
    if [ "$seconds" = merge ]; then
        find "$corpus/$target" -regextype egrep -regex '.*/[0-9a-f]{40}' -exec mv -t "$work/inputs/$target" {} +
        # Inputs that differ only in how often they reach the same code are left out: ten times as many.
        "$program" -merge=1 -use_counters=0 -max_len=4096 "$corpus/$target" "$work/inputs/$target" 2>"$work/$target.log"
        continue
    fi
    echo "fuzz: $target for $seconds s"
    "$program" -max_total_time="$seconds" -max_len=4096 -timeout=10 -artifact_prefix="$work/$target-" \
        -print_final_stats=1 "$work/inputs/$target" "$corpus/$target" >"$work/$target.log" 2>&1 ||
        failed+=("$target")
    grep -E 'cov: .* DONE|DONE .*cov:|number_of_executed_units|panicked|ERROR|SUMMARY|Test unit written' "$work/$target.log" || true
done
if [ ${#failed[@]} -gt 0 ]; then
    printf 'fuzz failed: build/fuzz/%s.log\n' "${failed[@]}" >&2
    exit 1
fi
