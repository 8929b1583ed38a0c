#!/bin/sh
# Builds sandkasten-runner, sandkasten-launch and sandkasten-unpack as static binaries and puts them
# into OUTDIR, or runs the crate's tests.
#
#   runner/build.sh [debug|release] [OUTDIR]        default: release, src/sandkasten/_bin
#   runner/build.sh test [ARGUMENTS OF cargo test]  tests from outside use the runner in src/sandkasten/_bin
#
# With Debian's crates (librust-*-dev) present, Debian's own cargo is used and nothing is downloaded;
# otherwise the cargo on PATH fetches the crates from its registry. cargo runs in a scratch directory
# ($CARGO_TARGET_DIR, or build/ beside this script) that links to the sources, so no lock file is left
# that would pin one of the two worlds.
set -eu

what=${1:-release}
here=$(cd "$(dirname "$0")" && pwd)
target=${CARGO_TARGET_DIR:-$here/build}
crates=/usr/share/cargo/registry

mkdir -p "$target"
target=$(cd "$target" && pwd)
scratch=$target/manifest
mkdir -p "$scratch"
cp "$here/Cargo.toml" "$scratch/Cargo.toml"
ln -sfn "$here/src" "$scratch/src"
ln -sfn "$here/tests" "$scratch/tests"
ln -sfn "$here/../spec" "$target/spec"
ln -sfn "$here/../src" "$target/src"

# Separated by a character that no path has. The programs must not name a path of this machine.
CARGO_ENCODED_RUSTFLAGS=$(printf '%s\037' -Ctarget-feature=+crt-static -Cforce-unwind-tables=no)
CARGO_ENCODED_RUSTFLAGS="${CARGO_ENCODED_RUSTFLAGS}--remap-path-prefix=$scratch=runner"
export CARGO_ENCODED_RUSTFLAGS
export CARGO_TARGET_DIR="$target"
if [ -d "$crates/serde_json-1.0.87" ] && [ -d "$crates/rustls-0.20.8" ] && [ -x /usr/bin/cargo ] && [ -x /usr/bin/rustc ]; then
    # rustup's shims and settings must not meet Debian's cargo.
    unset RUSTUP_TOOLCHAIN || true
    export CARGO_HOME="$target/cargo-home" RUSTC=/usr/bin/rustc RUSTDOC=/usr/bin/rustdoc
    rm -f "$scratch/Cargo.lock"
    run() {
        verb=$1
        shift
        /usr/bin/cargo "$verb" --offline \
            --config 'source.crates-io.replace-with="debian"' \
            --config "source.debian.directory=\"$crates\"" "$@"
    }
else
    run() { cargo "$@"; }
    RUSTC=rustc
fi
# The host triple is named so that the flags reach our programs alone, and not build scripts.
triple=$("$RUSTC" -vV | sed -n 's/^host: //p')
cd "$scratch"

case $what in
test)
    shift
    run test --target "$triple" "$@"
    exit
    ;;
release) run build --release --target "$triple" ;;
debug) run build --target "$triple" ;;
*)
    echo "build.sh: the first argument must be debug, release or test, not $what" >&2
    exit 2
    ;;
esac

out=${2:-$here/../src/sandkasten/_bin}
mkdir -p "$out"
for program in sandkasten-runner sandkasten-launch sandkasten-unpack sandkasten-egress; do
    # Replaced by rename: a running copy keeps its inode.
    cp "$target/$triple/$what/$program" "$out/.$program.new"
    mv -f "$out/.$program.new" "$out/$program"
done
