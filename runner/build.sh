#!/bin/sh
# Builds the programs of the runner and `sandkasten`, the command line, as static binaries and puts
# them into OUTDIR.
#
#   runner/build.sh [debug|release] [OUTDIR]        default: release, src/sandkasten_runtime/_bin
#
# cargo builds in $CARGO_TARGET_DIR, or build/ beside this script. `scripts/cargo.sh test` runs the tests.
set -eu

what=${1:-release}
here=$(cd "$(dirname "$0")" && pwd)
case $what in
    release) profile=--release ;;
    debug) profile= ;;
    *)
        echo "build.sh: the first argument must be debug or release, not $what" >&2
        exit 2
        ;;
esac
mkdir -p "${CARGO_TARGET_DIR:=$here/build}"
CARGO_TARGET_DIR=$(cd "$CARGO_TARGET_DIR" && pwd)
export CARGO_TARGET_DIR

# The programs must not name a path of this machine, so the directories of all crates get other names.
crates=$("$here/cargo.sh" metadata --format-version 1 | grep -o '"manifest_path":"[^"]*"' |
    sed 's|^"manifest_path":"||; s|/[^/]*/Cargo.toml"$||' | sort -u)
# Separated by a character that no path has.
separator=$(printf '\037')
RUNNER_RUSTFLAGS="-Ctarget-feature=+crt-static${separator}-Cforce-unwind-tables=no"
IFS='
'
for directory in $crates; do
    RUNNER_RUSTFLAGS="$RUNNER_RUSTFLAGS${separator}--remap-path-prefix=$directory=crates"
done
# The last one counts where two of them match.
RUNNER_RUSTFLAGS="$RUNNER_RUSTFLAGS${separator}--remap-path-prefix=$CARGO_TARGET_DIR/manifest=runner"
export RUNNER_RUSTFLAGS
"$here/cargo.sh" build $profile

out=${2:-$here/../src/sandkasten_runtime/_bin}
mkdir -p "$out"
triple=$("$("$here/toolchain.sh")/rustc" -vV | sed -n 's/^host: //p')
for program in sandkasten-runner sandkasten-launch sandkasten-unpack sandkasten-egress sandkasten-gate sandkasten; do
    # Replaced by rename: a running copy keeps its inode.
    cp "$CARGO_TARGET_DIR/$triple/$what/$program" "$out/.$program.new"
    mv -f "$out/.$program.new" "$out/$program"
done
