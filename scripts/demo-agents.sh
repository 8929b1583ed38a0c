#!/bin/bash
# Shows agents and a workflow on this machine, without a network: `make demo-agents`.
# The model is scripted (examples/agents/demo_model.py); sandboxes, tools and files are real.
# Uses its own data directory, checks every step and leaves nothing behind.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PWD/.venv/bin:$PATH"
SANDKASTEN_DATA_DIR=$(mktemp -d "${TMPDIR:-/tmp}/sandkasten-agents.XXXXXX")
export SANDKASTEN_DATA_DIR
unset SANDKASTEN_URL
work=$SANDKASTEN_DATA_DIR
cd examples/agents

leave() {
    kill "$model" 2>/dev/null || true
    sandkasten rm --all >/dev/null 2>&1 || true
    rm -rf "$work"
}
trap leave EXIT

bold='' plain=''
if [ -t 1 ]; then bold=$'\033[1m' plain=$'\033[0m'; fi
say() { printf '\n%s%s%s\n' "$bold" "$*" "$plain"; }
show() { printf '$ %s\n' "${*@Q}" | sed "s/'\([A-Za-z0-9@%+=:,./_-]*\)'/\1/g"; "$@"; }
fail() { printf 'demo-agents: %s\n' "$*" >&2; exit 1; }
# Fails unless the file contains the string.
holds() { grep -qF -- "$2" "$1" || fail "expected in the answer: $2"; }

python demo_model.py --port 0 >"$work/model.url" &
model=$!
for _ in $(seq 100); do
    [ -s "$work/model.url" ] && break
    sleep 0.1
done
SANDKASTEN_MODELS_BASE_URL=$(cat "$work/model.url")
[ -n "$SANDKASTEN_MODELS_BASE_URL" ] || fail "the model did not start"
export SANDKASTEN_MODELS_BASE_URL SANDKASTEN_MODELS_API_KEY=scripted

say "1. One line of frontmatter (sandbox: python) gives an agent a sandbox"
show grep -n '^sandbox' agents/log-analyzer.prompt
cat >"$work/app.log" <<'LOG'
09:00:01 INFO started
09:00:04 ERROR disk is full
09:00:05 ERROR disk is full
09:00:09 ERROR no route to host
09:00:12 INFO stopped
LOG
python -c 'import json,sys; print(json.dumps({"log_data": sys.stdin.read()}))' \
    <"$work/app.log" >"$work/variables.json"
show sandkasten agent run log-analyzer --variables "@$work/variables.json" | tee "$work/output"
holds "$work/output" '"error_count": 3'

say "2. An agent writes a program, sees it fail and fixes it: files persist between calls"
show sandkasten agent run "Python Developer" "print the primes below 20" | tee "$work/output"
holds "$work/output" '[2, 3, 5, 7, 11, 13, 17, 19]'

say "3. An agent answers a question about 50 MB of JSON with a program"
python - "$work/requests.json" <<'PY'
import json, random, sys
random.seed(7)
services = {"auth": 20, "cart": 35, "search": 90, "pay": 140, "mail": 12}
rows, size = [], 0
with open(sys.argv[1], "w") as file:
    file.write("[")
    while size < 50_000_000:
        name = random.choice(list(services))
        row = {"service": name, "ms": round(random.gauss(services[name], 3), 3), "note": "x" * 60}
        size += file.write((", " if size else "") + json.dumps(row))
    file.write("]")
PY
show sandkasten files put "$work/requests.json" --key requests.json >/dev/null
show sandkasten agent run json-analyst "Which services are slowest? The file is requests.json" |
    tee "$work/output"
holds "$work/output" '"service": "pay"'

say "4. Three agents share a sandbox; a test fails first, and the workflow loops until it passes"
show sandkasten workflow graph code-review-and-fix
printf 'def mean(values):\n    return sum(values) / len(values)\n' >"$work/stats.py"
python -c 'import json,sys; print(json.dumps(sys.stdin.read()))' <"$work/stats.py" >"$work/input.json"
show sandkasten workflow run code-review-and-fix --input "@$work/input.json" --follow |
    tee "$work/output"
show sandkasten workflow runs

say "5. Nothing is left"
[ -z "$(sandkasten ls --json | tr -d '[] \n')" ] || fail "a sandbox is left: $(sandkasten ls)"
echo "no sandbox is left"
