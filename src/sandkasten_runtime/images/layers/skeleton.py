"""The topmost layer that we add to every image: what a sandbox needs and an image may lack.

It has real directories at mount points, so that an image's `/proc` or `/dev` that is a link has no
effect; the image's own users plus the sandbox's; host name and hosts. Made from the layers below
it, of which it reads two files, bounded and without following links out of them.

While an image is built, its steps have mount points, host name and hosts only: what they see and
change besides is the image's own.
"""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

from sandkasten.model.sandbox.cell_spec import (
    E2B_HOME,
    HOME,
    ROOT_HOME,
    RUNNER_ID,
    TMP,
    USER_ID,
    USER_NAME,
)
from sandkasten_runtime.images.layers.overlay import Parent, has_program, landing, read_merged

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MAX_ACCOUNTS_BYTES: Final = 1024 * 1024
_DIRECTORIES: Final = (
    "proc", "dev", "sys", "run", "tmp", "etc", "var", "home", "home/sandbox", "workspace",
)  # fmt: skip
_BUILD_MOUNTS: Final = ("/proc", "/dev", "/sys", "/run", TMP, "/etc", ROOT_HOME)
_MODES: Final = {"proc": 0o555, "tmp": 0o1777, "root": 0o700}
_THE_USERS: Final = ("home/sandbox", "workspace")
_FILES: Final = {
    "hosts": b"127.0.0.1 localhost sandbox\n::1 localhost ip6-localhost\n",
    "hostname": b"sandbox\n",
    "resolv.conf": b"",
}
_NO_PASSWD: Final = b"root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n"
_NO_GROUP: Final = b"root:x:0:\ntty:x:5:\nnogroup:x:65534:\n"


def make_skeleton(target: Path, trees: Sequence[str]) -> None:
    """Fill `target`, an existing empty directory. Raise OSError if the disk refuses."""
    target.chmod(0o755)
    for name in _DIRECTORIES:
        _directory(target / name, of_root=name not in _THE_USERS)
    (target / "tmp").chmod(0o1777)
    # /tmp and /var/tmp are one directory, with one limit: the root is read-only.
    for link, to in (("work", "workspace"), ("var/tmp", "../tmp")):
        (target / link).symlink_to(to)
        _own(target / link, of_root=True)
    if not any(_has_own(Path(tree), E2B_HOME) for tree in trees):
        # The workspace is mounted there too: a link would show in every resolved path.
        _directory(target / E2B_HOME.removeprefix("/"), of_root=False)
    shell = "/bin/bash" if has_program(trees, "/bin/bash") else "/bin/sh"
    users = {
        "passwd": passwd(read_merged(trees, "/etc/passwd", MAX_ACCOUNTS_BYTES), shell),
        "group": group(read_merged(trees, "/etc/group", MAX_ACCOUNTS_BYTES)),
    }
    _write_etc(target, {**_FILES, **users})


def make_build_skeleton(target: Path, trees: Sequence[str], mounts: Sequence[str]) -> None:
    """Fill `target` for a step of a build with `mounts`, absolute paths, besides those of every
    sandbox. Raise OSError if the disk refuses.

    A directory of the image keeps its mode and its owner, which would be part of the next layer.
    """
    target.chmod(0o755)
    for mount in (*_BUILD_MOUNTS, *mounts):
        whole = PurePosixPath(mount.removeprefix("/"))
        for path in (*reversed(whole.parents[:-1]), whole):
            if not (target / path).exists():
                _like(target / path, _own_directory(trees, str(path)))
    _write_etc(target, _FILES)


def _own_directory(trees: Sequence[str], name: str) -> Parent:
    """Return the directory as the image has it; ours if it has none, or a link."""
    place = landing(trees, name)
    # A link to the root leads through no directory.
    if place is not None and place.there and place.parents and place.parents[-1].path == name:
        return place.parents[-1]
    return Parent(name, _MODES.get(name, 0o755))


def _like(path: Path, parent: Parent) -> None:
    path.mkdir()
    path.chmod(parent.mode)
    if os.geteuid() == 0:
        os.chown(path, parent.uid, parent.gid)


def _write_etc(target: Path, files: Mapping[str, bytes]) -> None:
    for name, content in files.items():
        path = target / "etc" / name
        path.write_bytes(content)
        path.chmod(0o644)
        _own(path, of_root=True)


def home_is_free(trees: Sequence[str]) -> bool:
    """Return whether the skeleton, the last of the trees, has the mount point at /home/user.

    Skeletons of older versions have a link to the workspace there.
    """
    home = Path(trees[-1]) / E2B_HOME.removeprefix("/")
    return home.is_dir() and not home.is_symlink()


def _has_own(tree: Path, path: str) -> bool:
    """Return whether a layer has a path, without following its links."""
    here = tree
    for part in path.split("/")[1:]:
        if here != tree and (here.is_symlink() or not here.is_dir()):
            return False
        here = here / part
    return os.path.lexists(here)


def passwd(content: bytes | None, shell: str) -> bytes:
    """Return the image's accounts, and ours if it has no account of that number."""
    return _with(
        content or _NO_PASSWD,
        (
            (USER_ID, f"{USER_NAME}:x:{USER_ID}:{USER_ID}:{USER_NAME}:{HOME}:{shell}"),
            (RUNNER_ID, f"runner:x:{RUNNER_ID}:{RUNNER_ID}:runner:/:/bin/false"),
        ),
    )


def group(content: bytes | None) -> bytes:
    return _with(
        content or _NO_GROUP,
        ((USER_ID, f"{USER_NAME}:x:{USER_ID}:"), (RUNNER_ID, f"runner:x:{RUNNER_ID}:")),
    )


def _with(content: bytes, accounts: Sequence[tuple[int, str]]) -> bytes:
    # A file that was cut at the bound must not end in half an account.
    if len(content) >= MAX_ACCOUNTS_BYTES:
        content = content[: content.rfind(b"\n") + 1]
    lines = content.splitlines()
    taken_ids = {line.split(b":")[2] for line in lines if line.count(b":") >= 2}
    lines += [text.encode() for number, text in accounts if str(number).encode() not in taken_ids]
    return b"\n".join(lines) + b"\n"


def _directory(path: Path, *, of_root: bool) -> None:
    path.mkdir()
    path.chmod(0o755)
    _own(path, of_root=of_root)


def _own(path: Path, *, of_root: bool) -> None:
    # An ordinary user's store has one owner; the user namespace of a sandbox maps it.
    if os.geteuid() == 0:
        owner = 0 if of_root else USER_ID
        os.chown(path, owner, owner, follow_symlinks=False)
