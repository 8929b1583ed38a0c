#!/bin/bash
# Install this checkout for the whole machine, or remove it again: install.sh install|uninstall.
# It makes, below DESTDIR (empty unless a packager sets it):
#   $PREFIX/lib/sandkasten                 a virtual environment with the locked requirements
#   $PREFIX/bin/sandkasten                 a link to its command
#   $UNITDIR/sandkasten.service            the unit, with this PREFIX
#   $PREFIX/share/man/man1/sandkasten.1    the commands, as `man sandkasten`
#   $PREFIX/share/doc/sandkasten           the documents and an example of all settings
# Settings (/etc/sandkasten) and data (/var/lib/sandkasten) are neither made nor removed.
#   PREFIX=/usr/local  DESTDIR=  UNITDIR=$PREFIX/lib/systemd/system  PYTHON=/usr/bin/python3
#   EXTRAS="server docker agents jwt mcp"  the optional parts to install
#   WHEEL=  a directory of our wheels to install instead of building them    COMPILE=no  make no bytecode
set -euo pipefail
cd "$(dirname "$0")/.."
prefix=${PREFIX:-/usr/local}
unitdir=${UNITDIR:-$prefix/lib/systemd/system}
root=${DESTDIR:-}
case $prefix$unitdir in
    /*) ;;
    *) echo "PREFIX and UNITDIR must be absolute paths, got $prefix and $unitdir" >&2; exit 2 ;;
esac
home=$prefix/lib/sandkasten
man=$prefix/share/man/man1/sandkasten.1
doc=$prefix/share/doc/sandkasten

install_all() {
    local python=.venv/bin/python staged=$root$prefix/lib/.sandkasten.new extra locked=()
    local pip=("$python" -m pip --disable-pip-version-check --quiet --no-input)
    if [ ! -x "$python" ] || [ ! -x src/sandkasten_runtime/_bin/sandkasten-runner ]; then
        echo "this checkout is not set up" >&2
        echo "hint: make setup, or make install, which does both" >&2
        exit 1
    fi
    if [ -e "$root$home" ] && [ ! -e "$root$home/.installed" ]; then
        echo "$root$home exists and was not made by make install" >&2
        echo "hint: remove it, or set another PREFIX" >&2
        exit 1
    fi
    # Everything is made beside its place and moved there at the end: what was installed before
    # keeps working until then, and stays if a step fails.
    rm -rf "$staged"
    trap "rm -rf '$staged'" EXIT
    "${PYTHON:-/usr/bin/python3}" -m venv --without-pip --prompt sandkasten "$staged"
    if [ -z "${WHEEL:-}" ]; then
        "$python" scripts/distributions.py wheels "$staged/wheel"
        WHEEL=$staged/wheel
    fi
    local extras=${EXTRAS:-server docker agents jwt mcp}
    for extra in $extras; do
        locked+=(-r "requirements/$extra.txt")
    done
    "${pip[@]}" --python "$staged/bin/python" install --no-compile --require-hashes "${locked[@]}"
    "${pip[@]}" --python "$staged/bin/python" install --no-compile --no-deps --no-index \
        --find-links "$WHEEL" $("$python" scripts/distributions.py installs $extras)
    rm -rf "$staged/wheel"
    # The programs of an environment name their interpreter by its full path.
    find "$staged/bin" -type f -exec grep -qI . {} \; -exec sed -i "1s|^#!$staged/|#!$home/|" {} +
    sed -i "s|$staged|$home|g" "$staged/pyvenv.cfg" "$staged"/bin/activate*
    if [ "${COMPILE:-yes}" = yes ]; then
        # A library may hold files for other versions of Python, which this one cannot compile.
        "$staged/bin/python" -m compileall -q -j0 -s "$staged" -p "$home" "$staged/lib" >/dev/null || true
    fi
    touch "$staged/.installed"
    rm -rf "$root$home"
    mv "$staged" "$root$home"

    install -d "$root$prefix/bin" "$root$unitdir" "$root$doc" "$root$(dirname "$man")"
    ln -sfn ../lib/sandkasten/bin/sandkasten "$root$prefix/bin/sandkasten"
    sed "s|/usr/local|$prefix|g" deploy/systemd/sandkasten.service >"$root$unitdir/sandkasten.service"
    chmod 0644 "$root$unitdir/sandkasten.service"
    manual >"$root$man"
    cp -r README.md CHANGELOG.md SECURITY.md SPECIFICATION.md ARCHITECTURE.md CONTRIBUTING.md LICENSE \
        docs deploy/sandkasten.yaml "$root$doc/"
    echo "installed $root$prefix/bin/sandkasten and $root$unitdir/sandkasten.service"
    [ -n "$root" ] || [ -e /etc/sandkasten/sandkasten.yaml ] || cat <<EOF
to run the daemon as a service:
  mkdir -p /etc/sandkasten && cd /etc/sandkasten && $prefix/bin/sandkasten init
  systemctl daemon-reload && systemctl enable --now sandkasten
EOF
}

# The page of commands as a manual page: a section for each command, its help as it is.
manual() {
    echo '.TH SANDKASTEN 1 "" "Sandkasten" "User Commands"'
    printf '.SH NAME\nsandkasten \\- self-hosted sandboxes for AI agents\n.SH SYNOPSIS\n'
    awk '
        /^## /     { print ".SH " toupper(substr($0, 4)); next }
        /^```text/ { print ".nf"; inside = 1; next }
        /^```/     { print ".fi"; inside = 0; next }
        inside     { gsub(/\\/, "\\e"); gsub(/-/, "\\-"); sub(/^[.\x27]/, "\\\\\\&&"); print }
    ' docs/reference/commands.md
    printf '.SH SEE ALSO\n.nf\n%s\n.fi\n' "$doc/docs/index.md"
}

uninstall_all() {
    if [ ! -e "$root$home/.installed" ]; then
        echo "nothing was installed by make install below $root$prefix" >&2
        echo "hint: set PREFIX as it was set then" >&2
        exit 1
    fi
    rm -f "$root$prefix/bin/sandkasten" "$root$unitdir/sandkasten.service" "$root$man"
    rm -rf "$root$home" "$root$doc"
    echo "removed $root$prefix/bin/sandkasten and all that came with it"
    echo "settings (/etc/sandkasten) and data (/var/lib/sandkasten) are kept"
}

case ${1:-} in
    install) install_all ;;
    uninstall) uninstall_all ;;
    *) echo "usage: install.sh install|uninstall" >&2; exit 2 ;;
esac
