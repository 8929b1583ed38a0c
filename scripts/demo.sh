#!/bin/bash
# The main job, shown on this machine in about a minute: `make demo`.
# Works in a data directory of its own and leaves nothing behind; every step is checked.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PWD/.venv/bin:$PATH"
home=$PWD
SANDKASTEN_DATA_DIR=$(mktemp -d "${TMPDIR:-/tmp}/sandkasten-demo.XXXXXX")
export SANDKASTEN_DATA_DIR
unset SANDKASTEN_URL
cd "$SANDKASTEN_DATA_DIR"

leave() {
    sandkasten rm --all >/dev/null 2>&1 || true
    cd /
    rm -rf "$SANDKASTEN_DATA_DIR"
}
trap leave EXIT

bold='' plain=''
if [ -t 1 ]; then bold=$'\033[1m' plain=$'\033[0m'; fi
say() { printf '\n%s%s%s\n' "$bold" "$*" "$plain"; }
show() { printf '$ %s\n' "$*"; "$@"; }
# Shows a command and what it says, and fails when that is not the last argument.
expect() {
    local said=${!#} got
    printf '$ %s\n' "${*:1:$#-1}"
    got=$("${@:1:$#-1}")
    printf '%s\n' "$got"
    [ "$got" = "$said" ] || fail "expected: $said"
}
fail() { printf 'demo: %s\n' "$*" >&2; exit 1; }

say "1. One piece of code, in a sandbox of its own that is gone afterwards"
expect sandkasten run -c 'print(6*7)' 42

say "2. A session that remembers, cannot be wedged, and is bounded"
python "$home/scripts/demo_session.py"

say "3. Sandboxes are nobody's children: kill -9 the process that made one, go on from the shell"
python "$home/scripts/demo_orphan.py" &
maker=$!
for _ in $(seq 100); do
    [ -s sandbox-id ] && break
    sleep 0.1
done
[ -s sandbox-id ] || fail "the maker did not make a sandbox"
id=$(cat sandbox-id)
{ kill -9 "$maker" && wait "$maker"; } 2>/dev/null || true
echo "process $maker made $id and was killed with SIGKILL"
show sandkasten ls
expect sandkasten exec "$id" 'echo "still in $PWD, and A is $A"' 'still in /tmp, and A is 1'

say "4. The same over HTTP: a daemon, killed in the midst of a command"
serve() {
    sandkasten serve --listen 127.0.0.1:0 2>serve.log &
    daemon=$!
    for _ in $(seq 300); do
        url=$(sed -n 's/^sandkasten serves \(http[^ ]*\) .*/\1/p' serve.log)
        [ -n "$url" ] && return
        sleep 0.1
    done
    cat serve.log >&2
    fail "the daemon did not start"
}
# ask METHOD PATH [JSON]: one request; field NAME: one field of the last answer.
ask() {
    printf '$ curl -X %s %s%s\n' "$1" "$2" "${3:+ -d "'$3'"}"
    curl -sS --fail-with-body -X "$1" "$url$2" ${3:+-H 'Content-Type: application/json' -d "$3"} -o answer.json \
        || { cat answer.json >&2; fail "the daemon refused"; }
}
field() { python -c 'import json, sys; print(json.load(open("answer.json"))[sys.argv[1]])' "$1"; }
serve
ask POST /v1/sessions '{"ttl_seconds": 600}'
session=$(field id)
ask POST "/v1/sessions/$session/exec" '{"cmd": "cd /tmp && export A=1 && echo $A in $PWD"}'
field output
ask POST "/v1/sessions/$session/exec" '{"cmd": ["sh", "-c", "for i in 1 2 3 4 5 6; do echo $i; sleep 0.5; done"], "background": true}'
counting=$(field exec_id)
sleep 1
{ kill -9 "$daemon" && wait "$daemon"; } 2>/dev/null || true
echo "the daemon (pid $daemon) was killed with SIGKILL; another takes its place"
serve
ask GET "/v1/sessions/$session/execs/$counting?wait_seconds=10"
[ "$(field stdout)" = $'1\n2\n3\n4\n5\n6' ] || fail "output was lost: $(field stdout)"
echo "it counted to 6 through all of it, and nothing of its output is missing"
ask POST "/v1/sessions/$session/exec" '{"cmd": "echo $A in $PWD"}'
[ "$(field output)" = '1 in /tmp' ] || fail "the shell forgot: $(field output)"
field output
kill "$daemon"
wait "$daemon" || fail "the daemon did not end well"

say "5. What this machine can do"
sandkasten doctor || fail "doctor found something that is missing"

say "6. Nothing is left"
show sandkasten rm --all
show sandkasten ls
sandkasten ls --json | python -c 'import json, sys; sys.exit(len(json.load(sys.stdin)) > 0)' \
    || fail "a sandbox is left"
if pgrep -f "$SANDKASTEN_DATA_DIR" >/dev/null; then fail "a process is left"; fi
if grep -q "$SANDKASTEN_DATA_DIR" /proc/self/mountinfo; then fail "a mount is left"; fi
echo "no sandbox, no process, no mount"
