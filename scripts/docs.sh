#!/bin/bash
# Builds the documentation site into build/site: `make docs`.
# Fails on a broken link or anchor, on a page that the navigation leaves out, and on a page that
# would load something from another host when it is viewed.
set -euo pipefail
cd "$(dirname "$0")/.."

# The site has the layout of the repository, so that links work in both.
rm -rf build/docs build/site
mkdir -p build/docs
for entry in *.md LICENSE docs spec examples contract deploy sdks client server plugins; do
    ln -s "../../$entry" "build/docs/$entry"
done
# Not --quiet: it would hide warnings from --strict as well.
.venv/bin/mkdocs build --strict

if grep -rnoE '<(script|img|iframe)[^>]+src="https?:[^"]*|<link[^>]+href="https?:[^"]*' \
    --include='*.html' build/site; then
    echo "docs: the pages above load something from another host" >&2
    exit 1
fi
echo "built build/site: $(find build/site -name '*.html' | wc -l) pages"
