#!/bin/sh
# Runs cargo on the runner with the crates of crates.lock: runner/cargo.sh VERB [ARGUMENTS]
#
# cargo runs in $CARGO_TARGET_DIR/manifest (build/manifest beside this script), which links to the sources.
# Only there is a Cargo.lock: it repeats the address of the registry for each crate, and crates.lock
# contains everything else of it.
#
# Crates come from where the user's cargo gets them: CARGO_HOME, replaced sources, proxies and
# certificates are those of the user. Flags, wrappers, profiles and targets are not.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
toolchain=$("$here/toolchain.sh")
registry=registry+https://github.com/rust-lang/crates.io"-index"

target=${CARGO_TARGET_DIR:-$here/build}
manifest=$target/manifest
mkdir -p "$manifest/.cargo"
target=$(cd "$target" && pwd)
lock=$here/crates.lock
cp "$here/Cargo.toml" "$manifest/Cargo.toml"
# Set by scripts/fuzz.sh.
if [ -n "${RUNNER_FUZZ:-}" ]; then
    lock=$here/fuzz/crates.lock
    cat "$here/fuzz/manifest.toml" >>"$manifest/Cargo.toml"
fi
# Configuration overrides Cargo.toml, and the nearest one overrides the user's.
sed -n '/^\[profile/,/^$/p' "$manifest/Cargo.toml" >"$manifest/.cargo/config.toml"
awk -v source="source = \"$registry\"" '/^checksum = / { print source } { print }' \
    "$lock" >"$manifest/Cargo.lock.$$"
mv -f "$manifest/Cargo.lock.$$" "$manifest/Cargo.lock"
ln -sfn "$here/src" "$manifest/src"
ln -sfn "$here/tests" "$manifest/tests"
ln -sfn "$here/fuzz" "$manifest/fuzz"
ln -sfn "$here/../spec" "$target/spec"
ln -sfn "$here/../src" "$target/src"

for name in $(env | sed -n 's/^\(CARGO_\(BUILD\|PROFILE\|TARGET\)_[A-Z0-9_]*\)=.*/\1/p'); do
    case $name in CARGO_BUILD_JOBS) ;; *) unset "$name" ;; esac
done
unset RUSTFLAGS RUSTDOCFLAGS RUSTFMT
export CARGO_TARGET_DIR="$target"
# An empty one overrides that of the user's configuration.
export CARGO_ENCODED_RUSTFLAGS="${RUNNER_RUSTFLAGS:-}" RUSTC_WRAPPER='' RUSTC_WORKSPACE_WRAPPER=''
export RUSTC="$toolchain/rustc" RUSTDOC="$toolchain/rustdoc"
# Named, so that flags reach the programs and not build scripts.
CARGO_BUILD_TARGET=$("$RUSTC" -vV | sed -n 's/^host: //p')
export CARGO_BUILD_TARGET
# cargo prefers subcommands in its home, which may be those of another toolchain, unless PATH has it.
PATH=$toolchain:$PATH:${CARGO_HOME:-${HOME:-/root}/.cargo}/bin

verb=$1
shift
cd "$manifest"
case $verb in
    # They take no --locked: one reads no lock, the other writes it.
    fmt | update) exec "$toolchain/cargo" "$verb" "$@" ;;
    *) exec "$toolchain/cargo" "$verb" --locked "$@" ;;
esac
