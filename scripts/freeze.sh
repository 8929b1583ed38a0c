#!/bin/bash
# Records the checksums of the runner protocol's generations in spec/runner/FROZEN.
# A generation that is already there is never recorded anew: sandboxes live that were born with
# it, so a change needs a new generation. (One that was never released may be unfrozen by hand,
# by deleting its line.)
set -euo pipefail
cd "$(dirname "$0")/../spec/runner"
touch FROZEN
for file in generation-*.json; do
    now=$(sha256sum "$file")
    if was=$(grep "  $file\$" FROZEN); then
        if [ "$was" != "$now" ]; then
            echo "$file is frozen and has changed; give the new messages a new generation" >&2
            exit 1
        fi
    else
        echo "$now" >>FROZEN
        echo "froze $file"
    fi
done
