#!/bin/bash
# Makes sure a gVisor that works is installed: runsc of 2024 or newer.
# Debian 12's own (20221219) answers EINVAL to statx, so that ls and stat fail in every sandbox; its
# backports suite has a newer one. That suite is switched on with the mirror that this machine's own
# apt sources name for the release itself, in a file of its own.
# A second run costs nothing. Not Debian, or not root: says what to do, and fails.
set -euo pipefail

oldest=20240000
sources=/etc/apt/sources.list.d/sandkasten-backports.sources
keyring=/usr/share/keyrings/debian-archive-keyring.gpg

# 0.0~20240729.0-1~bpo12+1 -> 20240729
build_of() { sed -nE 's/^[0-9.]*~([0-9]{8}).*/\1/p' <<<"${1:-}"; }
new_enough() { local build; build=$(build_of "$1"); [ -n "$build" ] && [ "$build" -ge $oldest ]; }

if ! command -v dpkg-query >/dev/null; then
    # Not Debian: whatever runsc there is, the backend's own probe tries it.
    command -v runsc >/dev/null && exit 0
    echo "runsc is missing; install gVisor of 2024 or newer as its documentation says" >&2
    exit 1
fi
new_enough "$(dpkg-query -W -f '${Version}' runsc 2>/dev/null || true)" && exit 0

if [ "$(id -u)" != 0 ]; then
    echo "runsc of 2024 or newer is missing" >&2
    echo "hint: sudo $0" >&2
    exit 1
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
export DEBIAN_FRONTEND=noninteractive
run() {
    if ! "$@" >"$log" 2>&1 </dev/null; then
        tail -n 40 "$log" >&2
        return 1
    fi
}
apt=(apt-get -q -o DPkg::Lock::Timeout=300)
offered() { apt-cache madison runsc 2>/dev/null | awk -F ' *\\| *' '{ print $2 }'; }
offers_new() {
    local version
    while read -r version; do
        new_enough "$version" && return 0
    done < <(offered)
    return 1
}

offers_new || run "${apt[@]}" update || echo "apt-get update had trouble; going on" >&2
if ! offers_new; then
    codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
    # As apt itself has read its sources, whatever their format.
    mirror=$(apt-get indextargets --format '$(CREATED_BY) $(RELEASE) $(COMPONENT) $(REPO_URI)' |
        awk -v release="$codename" '$1 == "Packages" && $2 == release && $3 == "main" { print $4; exit }')
    if [ -z "$codename" ] || [ -z "$mirror" ]; then
        echo "apt's sources name no mirror for ${codename:-this release}" >&2
        exit 1
    fi
    {
        echo "Types: deb"
        echo "URIs: $mirror"
        echo "Suites: $codename-backports"
        echo "Components: main"
        [ ! -r $keyring ] || echo "Signed-By: $keyring"
    } >"$sources.new"
    mv "$sources.new" "$sources"
    run "${apt[@]}" update || echo "apt-get update had trouble; going on" >&2
fi
version=$(while read -r v; do new_enough "$v" && echo "$v" && break; done < <(offered) || true)
if [ -z "$version" ]; then
    echo "no suite of this machine offers runsc of 2024 or newer" >&2
    exit 1
fi
echo "installing runsc $version"
run "${apt[@]}" -y install --no-install-recommends "runsc=$version"
