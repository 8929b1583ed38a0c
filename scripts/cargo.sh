#!/bin/bash
# Debian's own cargo on the runner, offline, with the crates that apt installed.
# The build folder lies in build/, and no cargo home, wrapper or flag of the user plays a part.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p build/cargo-home
root=$PWD
cd runner
# A lock made from another source of crates would not fit this one.
rm -f Cargo.lock
# Not as options of the command line: clippy does not pass them on.
cat >"$root/build/cargo-home/config.toml" <<'END'
[source.crates-io]
replace-with = "debian"
[source.debian]
directory = "/usr/share/cargo/registry"
END
exec env -u RUSTFLAGS -u RUSTC_WRAPPER -u RUSTUP_TOOLCHAIN -u CARGO_BUILD_TARGET \
    PATH=/usr/bin:/bin CARGO_HOME="$root/build/cargo-home" CARGO_TARGET_DIR="$root/build/runner-dev" \
    CARGO_NET_OFFLINE=true /usr/bin/cargo "$@"
