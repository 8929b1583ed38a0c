#!/bin/sh
# Builds sandkasten-runner and sandkasten-launch as static binaries and puts them into OUTDIR.
#
#   runner/build.sh [debug|release] [OUTDIR]        default: release, src/sandkasten/_bin
#
# With Debian's crates (librust-*-dev) present, Debian's own cargo is used and nothing is downloaded;
# otherwise the cargo on PATH fetches the crates from its registry. The build happens on a scratch copy
# of the manifest's directory ($CARGO_TARGET_DIR, or build/ beside this script), so no lock file is left
# that would pin one of the two worlds.
set -eu

profile=${1:-release}
here=$(cd "$(dirname "$0")" && pwd)
out=${2:-$here/../src/sandkasten/_bin}
target=${CARGO_TARGET_DIR:-$here/build}
crates=/usr/share/cargo/registry

case $profile in
release) flag=--release ;;
debug) flag= ;;
*) echo "build.sh: the profile must be debug or release, not $profile" >&2; exit 2 ;;
esac

mkdir -p "$target" "$out"
target=$(cd "$target" && pwd)
out=$(cd "$out" && pwd)
scratch=$target/manifest
mkdir -p "$scratch"
cp "$here/Cargo.toml" "$scratch/Cargo.toml"
ln -sfn "$here/src" "$scratch/src"

export RUSTFLAGS="-C target-feature=+crt-static"
export CARGO_TARGET_DIR="$target"
# The host triple is named so that the flag reaches the binaries alone, and not build scripts.
if [ -d "$crates/serde_json-1.0.87" ] && [ -x /usr/bin/cargo ] && [ -x /usr/bin/rustc ]; then
    rm -f "$scratch/Cargo.lock"
    triple=$(/usr/bin/rustc -vV | sed -n 's/^host: //p')
    # rustup's shims and settings must not meet Debian's cargo.
    (cd "$scratch" && env -u RUSTUP_TOOLCHAIN CARGO_HOME="$target/cargo-home" RUSTC=/usr/bin/rustc \
        /usr/bin/cargo build --offline $flag --target "$triple" \
        --config 'source.crates-io.replace-with="debian"' \
        --config "source.debian.directory=\"$crates\"")
else
    triple=$(rustc -vV | sed -n 's/^host: //p')
    (cd "$scratch" && cargo build $flag --target "$triple")
fi

for program in sandkasten-runner sandkasten-launch; do
    # Replaced by rename: a running copy keeps its inode.
    cp "$target/$triple/$profile/$program" "$out/.$program.new"
    mv -f "$out/.$program.new" "$out/$program"
done
