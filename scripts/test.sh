#!/bin/bash
# Run lint, the runner's tests and the Python tests; print the seconds of each phase at the end, and
# how much of them the processors worked or were kept by other guests of a virtual machine's host.
#   test.sh check    lint, types, and quick tests that need no container engine, in a few minutes
#   test.sh all      everything, every backend included (TEST_SANDKASTEN_LONG=1: every size in full)
#   test.sh plugin NAME  the tests of plugins/NAME
#   test.sh cluster  tests/cluster and both suites on a real Kubernetes of two nodes
#   test.sh cluster-short  both suites, and the tests of two replicas
#   test.sh dagger   plugins/dagger/tests on real Dagger engines
# Every phase runs, and any failure fails the whole. Nothing is run a second time.
# What failed is named once more at the end, where a reader of a long log looks first.
set -uo pipefail
cd "$(dirname "$0")/.."
unset PYTHONDONTWRITEBYTECODE
summary=()
failed=()
logs=build/test-logs
rm -rf $logs
mkdir -p $logs
declare -A background

# The seconds of all processors since the machine started: worked, and kept from it.
processors() {
    awk -v hz="$(getconf CLK_TCK)" '/^cpu / { printf "%d %d\n", ($2 + $3 + $4 + $7 + $8) / hz, $9 / hz }' /proc/stat
}
read -r worked kept < <(processors)

note() {
    summary+=("$(printf '%-10s %-7s %4d s' "$1" "$2" "$3")")
    [ "$2" = ok ] || failed+=("$1")
}

phase() {
    local name=$1 start=$SECONDS
    shift
    printf '\n== %s ==\n' "$name"
    if "$@" 2>&1 | tee "$logs/$name.log"; then
        note "$name" ok $((SECONDS - start))
    else
        note "$name" FAILED $((SECONDS - start))
    fi
}

# The tests that a phase names as failed, or else its last lines.
failures() {
    printf '\n== what failed in %s ==\n' "$1"
    grep -aE '^(FAILED|ERROR|hostwatch:) |^test .* FAILED$|^error|: error: ' "$logs/$1.log" >"$logs/failed" ||
        tail -n 10 "$logs/$1.log" >"$logs/failed"
    tail -n 12 "$logs/failed" | cut -c1-300
}

# Start a phase in the background, in a process group of its own; `finish` waits for it and shows it.
begin() {
    local name=$1
    shift
    set -m
    (
        SECONDS=0
        "$@"
        code=$?
        echo $SECONDS >"$logs/$name.seconds"
        exit $code
    ) >"$logs/$name.log" 2>&1 </dev/null &
    background[$name]=$!
    set +m
}

finish() {
    local name=$1 result=ok
    wait "${background[$name]}" || result=FAILED
    unset "background[$name]"
    printf '\n== %s ==\n' "$name"
    cat "$logs/$name.log"
    note "$name" $result "$(cat "$logs/$name.seconds" 2>/dev/null || echo 0)"
}

interrupt() {
    trap - INT TERM
    drop_scratch
    for group in "${background[@]}"; do
        kill -INT -- "-$group" 2>/dev/null
    done
    wait
    exit 130
}
trap interrupt INT TERM

# Tests make and remove a million files, which costs a tenth of the processors' time on a disk (an
# ext4 without a journal searches what it freed last for every new file). They are kept in memory
# where there is enough of it, and where it takes the attributes that a disk takes.
memory=/var/tmp/sk-tests-$(cksum <<<"$PWD" | cut -d' ' -f1)
place=()

make_scratch() {
    drop_scratch
    [ "$(id -u)" = 0 ] && [ "$(awk '/^MemAvailable/ { print $2 }' /proc/meminfo)" -ge 8000000 ] || return 0
    mkdir -p "$memory" && mount -t tmpfs -o mode=0755,size=50% sandkasten-tests "$memory" || return 0
    if .venv/bin/python -c 'import os, sys; os.setxattr(sys.argv[1], "user.test", b"")' "$memory" 2>/dev/null; then
        place=(--basetemp="$memory/t")
        install -d -m 1777 "$memory/rust"
    else
        drop_scratch
    fi
}

drop_scratch() {
    place=()
    while mountpoint -q "$memory" 2>/dev/null; do umount -l "$memory"; done
    rmdir "$memory" 2>/dev/null || true
}

rust() {
    local code=0
    [ ${#place[@]} = 0 ] || export TMPDIR=$memory/rust
    # Sizes that grow with the square, or find more the longer they run, are small in `make test`.
    if [ "${TEST_SANDKASTEN_LONG:-}" = 1 ]; then
        scripts/lint.sh rust || code=1
        export SANDKASTEN_DEPTH=5000 SANDKASTEN_WIDE=20000 SANDKASTEN_FUZZ_FRAMES=100000
        # A runner that also ends at an overflow; otherwise the one of `make setup` is tested.
        scripts/cargo.sh build --quiet --bin sandkasten-runner || code=1
        SANDKASTEN_RUNNER=$(echo "$PWD"/build/runner-dev/*/debug/sandkasten-runner)
        export SANDKASTEN_RUNNER
    else
        # clippy compiles all crates once more; `make lint` runs it.
        scripts/lint.sh format || code=1
        export SANDKASTEN_DEPTH=500 SANDKASTEN_WIDE=1000 SANDKASTEN_FUZZ_FRAMES=2000
    fi
    # Nothing is compiled twice here, so what a next time would need is not written.
    export CARGO_INCREMENTAL=0
    nice -n 5 scripts/cargo.sh test --quiet --no-fail-fast || code=1
    return $code
}

pages_and_types() {
    local code=0
    nice scripts/lint.sh python || code=1
    nice scripts/docs.sh || code=1
    return $code
}

# Collecting compiles every test once, so that the workers do not all do it at the same time.
collect() {
    .venv/bin/python -m pytest --collect-only --quiet --quiet "$@" | tail -n 3
}

# Images and environments take longer than one test may.
prepare() {
    local collected code=0
    collect tests plugins &
    collected=$!
    .venv/bin/python -m tests.prepare || code=1
    wait $collected || code=1
    return $code
}

# Several workers on one processor serve it well: tests wait for deadlines, daemons and sandboxes.
python() {
    .venv/bin/python -m pytest --durations=15 --durations-min=1 "${place[@]}" "$@" </dev/null
}

# What `make check` runs: no container engine, no full suite of the contract or of attacks, and of
# the plugins only what they bring and their settings. Tests marked `slow` are left out.
quick=(model wire settings store repo models engine conformance api client cli
    matrix/test_page.py)
quick=("${quick[@]/#/tests/}" --platform=unisolated)
quick+=(plugins/*/tests/test_plugin.py plugins/*/tests/test_*_settings.py)

case ${1:-all} in
    check)
        begin collect collect "${quick[@]}"
        phase lint scripts/lint.sh format python
        finish collect
        phase tests python -n "${WORKERS:-4}" -m "not slow" "${quick[@]}"
        ;;
    all)
        rm -rf build/platforms
        mkdir -p build/platforms
        limit=()
        [ "${TEST_SANDKASTEN_LONG:-}" = 1 ] && limit=(-o timeout=3600)
        make_scratch
        begin prepare prepare
        # The runner's tests compile while packages are fetched and images unpacked.
        begin rust rust
        # Types and pages use what the others leave of the processors.
        begin lint pages_and_types
        finish prepare
        phase tests python -n "${WORKERS:-4}" --hostwatch --platform=all \
            --outcome=build/platforms/main.json "${limit[@]}" tests plugins
        finish rust
        finish lint
        drop_scratch
        [ "${TEST_SANDKASTEN_LONG:-}" = 1 ] && phase fuzz scripts/fuzz.sh "${SANDKASTEN_FUZZ_SECONDS:-60}"
        phase platforms .venv/bin/python -m tests.matrix.page
        ;;
    plugin)
        folder=plugins/${2:?the name of a plugin}/tests
        if [ ! -d "$folder" ]; then
            echo "there is no $folder; plugins: $(ls plugins | xargs)" >&2
            exit 2
        fi
        phase prepare prepare
        phase tests python -n "${WORKERS:-4}" --hostwatch --platform=all "$folder"
        ;;
    cluster | cluster-short)
        rm -f build/cluster-platforms.json
        chosen=tests/cluster
        [ "$1" = cluster ] || chosen=tests/cluster/test_replicas.py
        phase cluster env TEST_SANDKASTEN_LONG=1 TEST_SANDKASTEN_CLUSTER=1 .venv/bin/python -m pytest --durations=15 \
            --durations-min=1 --hostwatch $chosen
        phase suites python -n "${WORKERS:-4}" --hostwatch --platform=cluster \
            --outcome=build/cluster-platforms.json tests/conformance tests/security
        phase platforms .venv/bin/python -m tests.matrix.page --cluster
        ;;
    dagger)
        phase dagger env TEST_SANDKASTEN_LONG=1 TEST_SANDKASTEN_DAGGER=1 .venv/bin/python -m pytest --durations=15 \
            --durations-min=1 --hostwatch plugins/dagger/tests
        ;;
    *)
        echo "usage: $0 [check|all|plugin NAME|cluster|cluster-short|dagger]" >&2
        exit 2
        ;;
esac

read -r worked_now kept_now < <(processors)
summary+=("processors worked $((worked_now - worked)) s, kept from this machine $((kept_now - kept)) s")
for name in "${failed[@]}"; do failures "$name"; done
printf '\n'
result=$([ ${#failed[@]} = 0 ] && echo ok || echo FAILED)
printf '%s\n' "${summary[@]}" "$(printf '%-10s %-7s %4d s' total "$result" $SECONDS)"
[ "$result" = ok ]
