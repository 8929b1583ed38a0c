#!/bin/bash
# Lint, the runner's own tests, and pytest; every phase runs and is timed, any failure fails all.
# Several things go on at once, because most tests wait for something: what runs beside another is
# written down and shown whole in its turn. A few tests that failed in that crowd are asked once
# more, alone, and named whatever becomes of them. SANDKASTEN_LONG=1 asks for full sizes, and asks
# once. With arguments there is one run of pytest, and they go to it.
set -uo pipefail
cd "$(dirname "$0")/.."
unset PYTHONDONTWRITEBYTECODE
summary=()
status=0
logs=build/test-logs
rm -rf $logs
mkdir -p $logs
declare -A besides
declare -A lanes
crowded=()
again=()

told() {
    summary+=("$(printf '%-14s %-7s %4d s' "$1" "$2" "$3")")
    [ "$2" = ok ] && return
    if [ -n "${lanes[$1]:-}" ]; then crowded+=("$1"); else status=1; fi
}

phase() {
    local name=$1 began=$SECONDS
    shift
    printf '\n== %s ==\n' "$name"
    if "$@"; then
        told "$name" ok $((SECONDS - began))
    else
        told "$name" FAILED $((SECONDS - began))
    fi
}

# Begins a phase whose turn to be shown comes with `gather`. It is a process group of its own,
# so that an interrupt can be handed on to all of it.
beside() {
    local name=$1
    shift
    set -m
    (
        SECONDS=0
        "$@"
        ended=$?
        echo $SECONDS >"$logs/$name.seconds"
        exit $ended
    ) >"$logs/$name.log" 2>&1 </dev/null &
    besides[$name]=$!
    set +m
}

gather() {
    local name=$1 how=ok
    wait "${besides[$name]}" || how=FAILED
    unset "besides[$name]"
    printf '\n== %s ==\n' "$name"
    cat "$logs/$name.log"
    told "$name" $how "$(cat "$logs/$name.seconds" 2>/dev/null || echo 0)"
}

interrupted() {
    trap - INT TERM
    for group in "${besides[@]}"; do
        kill -INT -- "-$group" 2>/dev/null
    done
    wait
    exit 130
}
trap interrupted INT TERM

runner() {
    local ended=0
    scripts/lint.sh rust || ended=1
    rust_tests || ended=1
    return $ended
}

rust_tests() {
    # What grows with the square, or is a matter of chance, is asked less of every day.
    [ "${SANDKASTEN_LONG:-}" = 1 ] && export SANDKASTEN_DEPTH=5000 SANDKASTEN_FUZZ=100000 \
        SANDKASTEN_FUZZ_FRAMES=100000 SANDKASTEN_WIDE=20000
    scripts/cargo.sh test --quiet --no-fail-fast \
        --config 'source.crates-io.replace-with="debian"' \
        --config 'source.debian.directory="/usr/share/cargo/registry"'
}

# Bootstrapping a Debian takes longer than a test may, so it is done before any begins.
images() {
    .venv/bin/python -m tests.prepare
}

# Full sizes take as long as they take; the everyday ones must not hang a run.
limits=()
[ "${SANDKASTEN_LONG:-}" = 1 ] && limits=(-o timeout=3600)
tests() {
    .venv/bin/python -m pytest --durations=15 --durations-min=1 "${limits[@]}" "$@" </dev/null
}

# One lane of tests: its name, then what goes to pytest.
lane() {
    local name=$1
    shift
    lanes[$name]=1
    beside "$name" tests -o cache_dir=build/lanes/"$name" "$@"
}

# More than this is no matter of chance.
FEW=4

# The tests that a lane noted as failed, a line each; none where it did not get so far.
failed_in() {
    .venv/bin/python -c 'import json, sys; print(*json.load(open(sys.argv[1])), sep="\n")' \
        build/lanes/"$1"/v/cache/lastfailed 2>/dev/null
}

second_look() {
    local name=$1 failed
    shift
    [[ " ${crowded[*]:-} " == *" $name "* ]] || return 0
    mapfile -t failed < <(failed_in "$name")
    if [ "${SANDKASTEN_LONG:-}" = 1 ] || ((${#failed[@]} == 0 || ${#failed[@]} > FEW)); then
        status=1
        return
    fi
    again+=("${failed[@]}")
    phase "$name alone" tests -o cache_dir=build/lanes/"$name" --last-failed --last-failed-no-failures=none "$@"
}

# In the environment of all that is begun here, so that what is left of it is known by it.
export SANDKASTEN_TEST_RUN=$$-$RANDOM$RANDOM
beside images images
beside runner runner
phase lint scripts/lint.sh python
gather images
if [ $# -gt 0 ]; then
    gather runner
    phase pytest tests --hostwatch "$@"
else
    # The suites that run on several grounds tell each other what they found: one lane, and what
    # installs packages fills it up. What meets
    # clients is another, and all the rest a third, so that a new directory is in it by itself.
    # Most of them wait most of the time: for a deadline, a daemon that starts, a sandbox that ends.
    # The suites on engines of docker are a fourth, with the images that engines have too; what else
    # is done with engines is a fifth, with the daemon as a program. All five take about as long.
    engines=(tests/matrix/test_docker_grounds.py tests/engines tests/images)
    docker=(tests/docker tests/container tests/deploy tests/daemon)
    grounds=(tests/conformance tests/security tests/matrix tests/packages tests/packaging
        --ignore=tests/matrix/test_docker_grounds.py)
    clients=(tests/acceptance tests/api tests/cli tests/client tests/compat tests/examples)
    rooms=("${clients[@]/#/--ignore=}" "${docker[@]/#/--ignore=}" --ignore=tests/conformance --ignore=tests/security \
        --ignore=tests/matrix --ignore=tests/packages --ignore=tests/packaging --ignore=tests/engines --ignore=tests/images)
    rm -rf build/lanes
    .venv/bin/python -m tests.hostwatch before $logs/host || status=1
    lane grounds "${grounds[@]}"
    lane clients "${clients[@]}"
    lane engines "${engines[@]}"
    lane docker "${docker[@]}"
    lane rooms "${rooms[@]}"
    gather rooms
    gather clients
    gather grounds
    gather engines
    gather docker
    gather runner
    second_look rooms "${rooms[@]}"
    second_look clients "${clients[@]}"
    second_look grounds "${grounds[@]}"
    second_look engines "${engines[@]}"
    second_look docker "${docker[@]}"
    phase hostwatch .venv/bin/python -m tests.hostwatch after $logs/host
fi

printf '\n'
printf '%s\n' "${summary[@]}"
if [ ${#again[@]} -gt 0 ]; then
    printf '\nfailed in the crowd, and were asked once more:\n'
    printf '  %s\n' "${again[@]}"
fi
exit $status
