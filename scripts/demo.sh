#!/bin/bash
# Shows the main features on this machine in about a minute: `make demo`.
# Uses its own data directory, checks every step and leaves nothing behind.
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
# Shows a command and its output, and fails if the output is not the last argument.
expect() {
    local said=${!#} got
    printf '$ %s\n' "${*:1:$#-1}"
    got=$("${@:1:$#-1}")
    printf '%s\n' "$got"
    [ "$got" = "$said" ] || fail "expected: $said"
}
fail() { printf 'demo: %s\n' "$*" >&2; exit 1; }

say "1. Run code once, in a new sandbox that is removed afterwards"
expect sandkasten run -c 'print(6*7)' 42

say "2. A session keeps its state, cannot hang, and has limits"
python "$home/scripts/demo_session.py"

say "3. Sandboxes outlive their creator: kill -9 the process, continue from the command line"
python "$home/scripts/demo_orphan.py" &
creator=$!
for _ in $(seq 100); do
    [ -s sandbox-id ] && break
    sleep 0.1
done
[ -s sandbox-id ] || fail "the script did not create a sandbox"
id=$(cat sandbox-id)
{ kill -9 "$creator" && wait "$creator"; } 2>/dev/null || true
echo "process $creator created $id and was killed with SIGKILL"
show sandkasten ls
expect sandkasten exec "$id" 'echo "still in $PWD, and A is $A"' 'still in /tmp, and A is 1'

say "4. The same over HTTP: a daemon is killed during a command"
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
        || { cat answer.json >&2; fail "the daemon refused the request"; }
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
echo "the daemon (pid $daemon) was killed with SIGKILL; a new one starts"
serve
ask GET "/v1/sessions/$session/execs/$counting?wait_seconds=10"
[ "$(field stdout)" = $'1\n2\n3\n4\n5\n6' ] || fail "output was lost: $(field stdout)"
echo "the command counted to 6 meanwhile, and none of its output is missing"
ask POST "/v1/sessions/$session/exec" '{"cmd": "echo $A in $PWD"}'
[ "$(field output)" = '1 in /tmp' ] || fail "the shell lost its state: $(field output)"
field output
kill "$daemon"
wait "$daemon" || fail "the daemon did not exit cleanly"

say "5. What this machine supports"
sandkasten doctor || fail "doctor reports something missing"

say "6. Nothing is left"
show sandkasten rm --all
show sandkasten ls
sandkasten ls --json | python -c 'import json, sys; sys.exit(len(json.load(sys.stdin)) > 0)' \
    || fail "a sandbox is left"
if pgrep -f "$SANDKASTEN_DATA_DIR" >/dev/null; then fail "a process is left"; fi
if grep -q "$SANDKASTEN_DATA_DIR" /proc/self/mountinfo; then fail "a mount is left"; fi
echo "no sandbox, no process, no mount"
