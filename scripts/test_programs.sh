# Sourced by the scripts that compile programs for tests: find a Go toolchain, keep its caches in one
# place, and keep what was compiled for other clones on this machine.
# Expects $place, a directory below build/, and a function `fail`.

# Take what was compiled before from the same files ($@, directories too). Nothing in $place is
# replaced.
take_kept() {
    local digest
    digest=$(find "$@" scripts/test_programs.sh requirements/go.txt -type f -print0 | sort -z | xargs -0 cat | sha256sum)
    kept=${XDG_CACHE_HOME:-~/.cache}/sandkasten/${place##*/}-${digest:0:16}
    if [ -d "$kept" ]; then
        cp -aln "$kept/." "$place" 2>/dev/null || cp -an "$kept/." "$place"
    fi
}

# Keep these directories of $place for the next `take_kept`; those of other versions are removed.
keep() {
    local name new=$kept.new
    [ ! -d "$kept" ] || return 0
    rm -rf "${kept%-*}"-*
    mkdir -p "$new"
    for name in "$@"; do
        cp -al "$place/$name" "$new" 2>/dev/null || cp -a "$place/$name" "$new"
    done
    mv "$new" "$kept"
}

# The machine's Go if it is at least version $1, else the one of a locked wheel.
find_go() {
    local wanted=$1 found
    found=$(GOTOOLCHAIN=local go env GOVERSION 2>/dev/null || true)
    if [ -n "$found" ] && printf '%s\n' "$wanted" "${found#go}" | sort --check=quiet --version-sort; then
        return
    fi
    local tools=$place/go-tools
    if [ ! -x "$tools/bin/go" ]; then
        echo "installing a Go toolchain (this machine has ${found:-none}, $wanted is needed)"
        rm -rf "$tools"
        "${PYTHON:-/usr/bin/python3}" -m venv "$tools"
        "$tools/bin/pip" --disable-pip-version-check install --quiet --require-hashes -r requirements/go.txt
    fi
    PATH=$tools/bin:$PATH
}

# Everything that Go writes is below $place/go.
prepare_go() {
    find_go "$1"
    export GOTOOLCHAIN=local GOFLAGS='-mod=readonly -modcacherw -trimpath -buildvcs=false' GOWORK=off
    export GOMODCACHE=$place/go/modules GOCACHE=$place/go/packages GOTMPDIR=$place/go/tmp
    # The compilers are short-lived: they need not collect their garbage often.
    export CGO_ENABLED=0 GOGC=400
    # Go counts its uses in the user's configuration, from which it also reads its settings.
    GOENV=$(go env GOENV)
    export GOENV XDG_CONFIG_HOME=$place/go/config
    mkdir -p "$GOTMPDIR"
}

# Unpack Debian packages into $place/debian. apt checks signatures and checksums.
unpack_packages() {
    local made=$place/debian.new package
    rm -rf "$made"
    mkdir -p "$made/debs"
    echo "fetching $*"
    # Its lists may be old or missing: then a second try.
    (
        cd "$made/debs"
        apt-get -q download "$@" >"$place/apt.log" 2>&1 ||
            { apt-get -q update >"$place/apt.log" 2>&1 || true
              apt-get -q download "$@" >>"$place/apt.log" 2>&1; }
    ) || { tail -n 20 "$place/apt.log" >&2; fail "apt does not provide $*"; }
    for package in "$made"/debs/*.deb; do
        dpkg -x "$package" "$made"
    done
    ls "$made/debs" >"$made/versions"
    rm -rf "$made/debs" "$place/debian"
    mv "$made" "$place/debian"
}
