#!/bin/sh
# Prints the directory of the Rust toolchain that builds the runner: the first whose cargo and rustc are
# as new as Cargo.toml requires. Searches PATH, the directory of rustup, and /usr/bin.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
least=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$here/Cargo.toml")

# Return whether a program starts and is new enough. One of rustup starts only with a toolchain.
is_new() {
    [ -x "$1" ] || return 1
    version=$("$1" --version 2>/dev/null | cut -d ' ' -f 2)
    [ -n "$version" ] && [ "$(printf '%s\n' "$least" "$version" | sort -V | head -n 1)" = "$least" ]
}

IFS=:
for directory in $PATH "${CARGO_HOME:-${HOME:-/root}/.cargo}/bin" /usr/bin; do
    if is_new "$directory/cargo" && is_new "$directory/rustc"; then
        echo "$directory"
        exit
    fi
done
echo "the runner requires cargo and rustc $least or newer, and none is installed" >&2
echo "hint: install rustc-web and cargo-web (Debian 12), rustc and cargo (Debian 13), or rustup's stable toolchain" >&2
exit 1
