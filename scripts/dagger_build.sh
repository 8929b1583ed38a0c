#!/bin/bash
# Build or fetch the programs of the tests on a real Dagger engine (tests/dagger) into build/dagger, once.
#   dagger-VERSION/  engine, init, dnsname, dialstdio and the command line (dagger), compiled from the
#                    Go module proxy: VERSION without the terminal UI and without the Dang v2 modules,
#                    because the proxy refuses what these need (tests/dagger/engine/stand-ins)
#   dagger-VERSION/cni/  the network plugins (tests/dagger/engine/plugins)
#   debian/          dnsmasq and runc: packages, unpacked
# tests/dagger/engine/go.sum has the digest of Dagger's sources, whose own go.sum has those of nearly
# all that they need, and the digests of the others.
# A copy is kept in the user's cache (~/.cache/sandkasten), from which the next clone takes it.
# A module that the proxy refuses is named, and fails.
# KEEP_GO_CACHE=1 keeps the sources and compiled packages (several GB), for work on this script.
set -euo pipefail
cd "$(dirname "$0")/.."

ours=$PWD/tests/dagger/engine
module=github.com/dagger/dagger
read -r _ version digest <"$ours/go.sum"
place=$PWD/build/dagger
out=$place/dagger-$version
commands=(init dnsname dialstdio engine dagger)
plugins=(main/bridge main/loopback meta/firewall ipam/host-local)
mkdir -p "$place"
exec 9>"$place/.lock"
flock 9

fail() {
    echo "dagger_build.sh: $1" >&2
    exit 1
}
. scripts/test_programs.sh

# Dagger's own sources, with stand-ins for what the proxy refuses. Go replaces no files of a module,
# so they are copied and built as the main module.
lay_out_sources() {
    local found sources at=$place/go/source
    echo "fetching the sources of Dagger $version"
    found=$(cd "$place/go" && go mod download -json "$module@$version" 2>"$place/go.log") ||
        { tail -n 20 "$place/go.log" >&2; echo "$found" >&2; fail "the Go module proxy does not provide $module $version"; }
    [ "$(sed -n 's/^\t"Sum": "\(.*\)",$/\1/p' <<<"$found")" = "$digest" ] ||
        fail "the sources of $module $version are not those whose digest is in $ours/go.sum"
    sources=$(sed -n 's/^\t"Dir": "\(.*\)",$/\1/p' <<<"$found")
    rm -rf "$at"
    mkdir -p "$at/dagger"
    cp -r "$sources"/{analytics,auth,cmd,core,dagql,engine,internal,network,util,go.mod,go.sum} "$at/dagger"
    chmod -R u+w "$at"
    cp -r "$ours/stand-ins/tuist" "$ours/stand-ins/teav1" "$at"
    cp -r "$ours/stand-ins/distconsts" "$at/dagger/engine/distconsts"
    cat "$ours/go.sum" >>"$at/dagger/go.sum"
    (
        cd "$at/dagger"
        rm core/sdk/dang/v2/helpers.go
        cp "$ours/stand-ins/dangv2.go" core/sdk/dang/v2/sdk.go
        cp "$ours/stand-ins/nosearch.go" dagql/idtui/
        sed -i 's#\*midterm\.Terminal#*vtTerm#
            s#midterm\.NewAutoResizingTerminal()#\&vtTerm{Terminal: midterm.NewAutoResizingTerminal()}#' \
            dagql/idtui/vterm.go
        go mod edit -replace "dagger.io/dagger=dagger.io/dagger@$version" \
            -replace github.com/vito/midterm=github.com/vito/midterm@v0.2.4 \
            -replace github.com/vito/tuist=../tuist -replace github.com/vito/tuist/teav1=../teav1
    )
}

# Lists every module that is refused, before anything is compiled.
check_sources() {
    local refused
    if ! refused=$(cd "$place/go/source/dagger" &&
        go list -e -deps -f '{{with .Error}}{{.}}{{end}}' "$@" 2>"$place/go.log"); then
        tail -n 20 "$place/go.log" >&2
        fail "the Go module proxy does not provide a module of Dagger $version"
    fi
    if [ -n "$refused" ]; then
        head -n 20 <<<"$refused" >&2
        fail "the Go module proxy refuses a module of Dagger $version"
    fi
}

# Compile package $3 of the module in directory $2 as $1.
compile() {
    local name=$1 package=$3 start=$SECONDS
    [ ! -x "$out/$name" ] || return 0
    echo "compiling $name"
    (cd "$2" && nice -n 19 go build -p "$(nproc)" -tags dfexcludepatterns,dfparents \
        -ldflags "-s -w -X $module/engine.Version=$version -X $module/engine.Tag=$version" \
        -o "$out/$name.new" "$package") || fail "$name does not compile"
    mv "$out/$name.new" "$out/$name"
    echo "compiled $name in $((SECONDS - start)) s"
}

take_kept scripts/dagger_build.sh tests/dagger/engine
if [ ! -x "$place/debian/usr/sbin/dnsmasq" ]; then
    # With those of its libraries that this machine does not have.
    mapfile -t lacking < <(apt-get -q --simulate --no-install-recommends install dnsmasq-base 2>/dev/null |
        sed -n 's/^Inst \([^ ]*\).*/\1/p' | grep -vx dnsmasq-base)
    unpack_packages dnsmasq-base runc "${lacking[@]}"
fi
if [ ! -e "$out/complete" ]; then
    prepare_go "$(sed -n 's/^go //p' "$ours/stand-ins/tuist/go.mod")"
    lay_out_sources
    check_sources "${commands[@]/#/./cmd/}"
    mkdir -p "$out/cni"
    for name in "${plugins[@]}"; do
        compile "cni/${name##*/}" "$ours/plugins" "github.com/containernetworking/plugins/plugins/$name"
    done
    for name in "${commands[@]}"; do compile "$name" "$place/go/source/dagger" "./cmd/$name"; done
    touch "$out/complete"
fi
keep debian "${out##*/}"
[ "${KEEP_GO_CACHE:-}" = 1 ] || rm -rf "$place/go"
