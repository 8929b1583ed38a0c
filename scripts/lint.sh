#!/bin/bash
# Run every linter; fail at the end when one of them did. Usage: lint.sh [python|format|rust]...
set -uo pipefail
cd "$(dirname "$0")/.."
failed=()

try() {
    local name=$1
    shift
    echo "lint: $name"
    "$@" || failed+=("$name")
}

for part in "${@:-python}"; do
    case $part in
        python)
            try "ruff check" .venv/bin/ruff check --quiet .
            try "ruff format" .venv/bin/ruff format --check --quiet .
            try "mypy" .venv/bin/mypy --no-error-summary
            ;;
        format) try "cargo fmt" scripts/cargo.sh fmt -- --check ;;
        rust)
            try "cargo fmt" scripts/cargo.sh fmt -- --check
            # The integration tests are an example with `test = true`. --all-targets would also check it
            # as a plain example, which has no main function.
            try "cargo clippy" scripts/cargo.sh clippy --quiet --lib --bins --tests -- -D warnings
            ;;
        *) echo "lint.sh: unknown part $part" >&2; exit 2 ;;
    esac
done

if [ ${#failed[@]} -gt 0 ]; then
    printf 'lint failed: %s\n' "${failed[@]}" >&2
    exit 1
fi
