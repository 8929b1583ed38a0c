#!/bin/bash
# Install the system packages of a purpose: setup, check, test, long, fuzz or bench.
# Asks dpkg what is missing and calls apt only then, so that a second run costs nothing.
# If packages are missing and the user is not root, prints their names and fails.
# On another system than Debian it prints what is needed and goes on.
set -euo pipefail

purpose=${1:?usage: apt_packages.sh setup|check|test|long|fuzz|bench}
runner=$(dirname "$0")/../runner

setup=(
    python3 python3-venv      # the engine and the command line
    bubblewrap                # the local backend
    libseccomp2               # its system-call filter, through pyseccomp
    e2fsprogs util-linux      # workspaces with a quota: mkfs.ext4, losetup, mount
    zstd                      # layers of images that are compressed with it
    bash coreutils procps     # what people expect to find inside the host image
    curl                      # the demonstration speaks to the daemon with it
    mmdebstrap uidmap         # images of Debian packages: sandkasten image build, for any user
    python3-ipykernel         # a kernel for code contexts in the host image
    gcc libc6-dev             # the runner; see also rust_packages
)
# Debian's node, unless the machine has one where the host image shows it.
[ -x /usr/bin/node ] || setup+=(nodejs)

check=(
    git                       # tests/repo asks it which files belong to the repository
    busybox-static            # a shell that is not bash, and an image with nothing in it
)
test=(
    skopeo                    # images: another tool to compare with
    apt-utils                 # a mirror of packages to install from inside a sandbox
    zstd xz-utils bzip2       # archives as people compress them
    docker-registry openssl   # a registry to pull from, and certificates for it
    tmux vim-tiny             # a terminal over HTTP, driven as a person would
    runc                      # the oci backend
    podman                    # the example of a backend from outside the project
    docker.io iptables iproute2   # engines of the docker backend, each on a machine of its own
    openssh-server openssh-client # an engine that is reached by ssh
    docker-compose            # what reads deploy/compose
    xfsprogs btrfs-progs      # disks on which snapshots share blocks
    postgresql                # the database of several daemons, and a server that a sandbox reaches
)
# Debian's npm, unless the machine's node brings one: it installs the TypeScript compiler.
[ -x /usr/bin/npm ] || test+=(npm)
# Of tests that are marked as long.
long=(
    chromium                  # a browser that opens previews
    prometheus                # reads /metrics, and runs the queries of the dashboard and the alerts
    openjdk-17-jre-headless   # a kernel for Java in the host image
)
fuzz=(
    g++                       # libFuzzer
)
bench=(
    docker.io runc            # the peers
    iptables iproute2         # an engine on a machine of its own
    passt slirp4netns         # other ways out of a namespace
    busybox-static
)

case $purpose in
    setup) wanted=("${setup[@]}") ;;
    check) wanted=("${setup[@]}" "${check[@]}") ;;
    test) wanted=("${setup[@]}" "${check[@]}" "${test[@]}") ;;
    long) wanted=("${setup[@]}" "${check[@]}" "${test[@]}" "${long[@]}" "${fuzz[@]}") ;;
    fuzz) wanted=("${setup[@]}" "${fuzz[@]}") ;;
    bench) wanted=("${setup[@]}" "${bench[@]}") ;;
    *) echo "apt_packages.sh: unknown purpose $purpose" >&2; exit 2 ;;
esac

if ! command -v dpkg-query >/dev/null; then
    echo "not a Debian: please see to it that you have what these packages hold, and Rust: ${wanted[*]}" >&2
    exit 0
fi

# gVisor, for the gvisor backend: not the release's own build, which does not work.
case $purpose in
    test | long | bench) "$(dirname "$0")/runsc.sh" ;;
esac

# dpkg-query fails when it does not know a name, and still prints those it knows.
installed=$(dpkg-query -W -f '${db:Status-Status} ${Package}\n' "${wanted[@]}" 2>/dev/null || true)
missing=()
for name in "${wanted[@]}"; do
    grep -qx "installed $name" <<<"$installed" || missing+=("$name")
done

# Programs of Rust that are missing, by their names in Debian 13.
rust=()
toolchain=$("$runner/toolchain.sh" 2>/dev/null) || rust+=(rustc cargo)
case $purpose in
    check | test | long)
        for tool in rustfmt rust-clippy; do
            "${toolchain:-/usr/bin}/${tool/rust-clippy/cargo-clippy}" --version >/dev/null 2>&1 || rust+=($tool)
        done
        if [ ${#rust[@]} -gt 0 ] && [ "${toolchain:-/usr/bin}" != /usr/bin ]; then
            echo "the toolchain in $toolchain has no rustfmt or no clippy" >&2
            echo "hint: rustup component add rustfmt clippy" >&2
            exit 1
        fi
        ;;
esac
case $purpose in
    # The host image shows the cargo of /usr/bin; a test fetches a crate with it.
    test | long)
        [ "$(PATH=/usr/bin CARGO_HOME=/nonexistent "$runner/toolchain.sh" 2>/dev/null)" = /usr/bin ] ||
            [[ " ${rust[*]} " = *" cargo "* ]] || rust+=(cargo)
        ;;
esac
[ $((${#missing[@]} + ${#rust[@]})) -gt 0 ] || exit 0

candidate() {
    LC_ALL=C apt-cache policy "$1" 2>/dev/null | sed -n 's/^  Candidate: \([0-9].*\)/\1/p'
}

# Add the packages of `rust` to `missing`. Debian 12 has Rust twice: one too old, and one for building
# browsers (rustc-web), whose packages replace those of the other one.
rust_packages() {
    local least suffix='' name
    [ ${#rust[@]} -gt 0 ] || return 0
    least=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$runner/Cargo.toml")
    if dpkg --compare-versions "$(candidate rustc)" lt "$least"; then
        if [ -n "$(candidate rustc-web)" ]; then
            suffix=-web
        else
            # It says what to install, if there is none.
            "$runner/toolchain.sh" >/dev/null
        fi
    fi
    for name in "${rust[@]/%/$suffix}"; do
        missing+=("${name/#rust-clippy-web/rust-web-clippy}")
    done
}

if [ "$(id -u)" != 0 ]; then
    rust_packages
    echo "these packages are missing: ${missing[*]}" >&2
    echo "hint: sudo apt-get install --no-install-recommends ${missing[*]}" >&2
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
# What is installed here is started by those who use it, and by nobody else.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
    trap 'rm -f "$log" "$policy"' EXIT
fi
# A foreign source that does not answer must not stop us; the install below decides.
run apt-get -q -o DPkg::Lock::Timeout=300 update || echo "apt-get update had trouble; going on" >&2
rust_packages
echo "installing ${#missing[@]} packages: ${missing[*]}"
run apt-get -q -y -o DPkg::Lock::Timeout=300 install --no-install-recommends "${missing[@]}"
