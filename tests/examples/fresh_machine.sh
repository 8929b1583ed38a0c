#!/bin/bash
# Run a program on a fresh Debian that has only make and certificates, with this repository.
# usage: fresh_machine.sh DIRECTORY REPOSITORY PROGRAM SUITE
# The sources of this machine are used for each suite. Its own suite is bookworm.
# Mounts are made in a namespace of this program alone, and end with it.
set -euo pipefail
place=$1 repository=$2 program=$3 release=$4
root=$place/root

if [ ! -e "$place/made" ]; then
    suite=(--variant=minbase --include=make,ca-certificates)
    sources=$place/$release.sources
    sed "s/bookworm/$release/g" /etc/apt/sources.list.d/debian.sources >"$sources"
    mmdebstrap --quiet "${suite[@]}" "$release" "$root" "$sources"
    # How this machine reaches its mirrors.
    cp -a /etc/apt/apt.conf.d/. "$root/etc/apt/apt.conf.d/"
    cp -L /etc/resolv.conf /etc/hosts "$root/etc/"
    cp -a /usr/local/share/ca-certificates /etc/ssl "$root/var/tmp/"
    cp -a "$root/var/tmp/ssl/." "$root/etc/ssl/"
    for file in /etc/pip.conf /etc/npmrc; do [ ! -e "$file" ] || cp "$file" "$root/etc/"; done
    if [ -e ~/.cargo/config.toml ]; then
        home=$root/root
        install -D -m 0644 ~/.cargo/config.toml "$home/.cargo/config.toml"
    fi
    mkdir "$root/srv/sandkasten"
    git -C "$repository" archive HEAD | tar -x -C "$root/srv/sandkasten"
    touch "$place/made"
fi
cp "$program" "$root/srv/program"

# What a login as root has in Debian. Of this machine's variables only those that name the way to
# package registries in a closed network: a newcomer there has them too.
environment=(HOME=/root USER=root LOGNAME=root SHELL=/bin/bash TERM=dumb
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin)
for name in {http,https,no}_proxy {HTTP,HTTPS,NO}_PROXY PIP_INDEX_URL; do
    [ -z "${!name-}" ] || environment+=("$name=${!name}")
done
exec unshare --mount --pid --fork --kill-child --propagation private bash -c '
    set -e
    mount --rbind "$1" "$1"
    cd "$1"
    mount -t proc proc proc
    mount --rbind /sys sys
    mount --rbind /dev dev
    mount -t tmpfs tmpfs run
    mkdir -p mnt
    # Not chroot, in which the kernel refuses user namespaces.
    pivot_root . mnt
    umount -l /mnt
    cd /srv/sandkasten
    exec env -i "${@:2}" bash /srv/program
' bash "$root" "${environment[@]}"
