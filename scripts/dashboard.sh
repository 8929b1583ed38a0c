#!/bin/bash
# Build the dashboard into server/src/sandkasten_server/_dashboard, with a digest of its sources beside it.
# Needs node 20.19 or newer and npm; the result is in the repository, so that nothing else does.
set -euo pipefail
cd "$(dirname "$0")/../dashboard"

built=../server/src/sandkasten_server/_dashboard
if ! cmp -s package-lock.json node_modules/.installed; then
    # Not npm ci: it refuses a lock without the packages of other platforms, which a registry may lack.
    npm install --no-save --ignore-scripts --silent --no-audit --no-fund
    cp package-lock.json node_modules/.installed
fi
npm run --silent build
../scripts/dashboard_digest.py >"$built/sources.sha256"
