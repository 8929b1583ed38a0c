"""Parsing the kernel's list of mounts."""

from __future__ import annotations

import os

from sandkasten_runtime.linux.storage import mountinfo
from sandkasten_runtime.linux.storage.mountinfo import MountEntry

# Linux 6.1 under systemd, cut to what matters; the third has a blank and a backslash in its name.
LINES = rb"""22 29 0:21 / /proc rw,nosuid shared:13 - proc proc rw
29 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard
46 29 7:3 / /srv/a\040b\134c/mnt rw,nosuid,nodev,noatime shared:1 master:7 - ext4 /dev/loop3 rw
47 46 7:3 / /srv/x rw - fuse.sshfs somebody@somewhere:/ rw
broken
"""


def test_points_devices_and_tags_are_read_and_names_are_unescaped():
    assert mountinfo.parse(LINES) == [
        MountEntry("/proc", "0:21", "proc", ("shared:13",)),
        MountEntry("/", "254:0", "ext4", ("shared:1",)),
        MountEntry("/srv/a b\\c/mnt", "7:3", "ext4", ("shared:1", "master:7")),
        MountEntry("/srv/x", "7:3", "fuse.sshfs", ()),
    ]


def test_a_mount_below_a_path_is_matched_by_whole_names(monkeypatch):
    monkeypatch.setattr(mountinfo, "own", lambda: mountinfo.parse(LINES))
    assert [m.point for m in mountinfo.under("/srv/x")] == ["/srv/x"]
    assert mountinfo.under("/sr") == []
    assert [m.point for m in mountinfo.under("/srv")] == ["/srv/a b\\c/mnt", "/srv/x"]


def test_the_longest_mount_point_covers_a_path(monkeypatch):
    monkeypatch.setattr(mountinfo, "own", lambda: mountinfo.parse(LINES))
    found = [mountinfo.covering(path) for path in ("/srv/x/y", "/srv/xy", "/proc")]
    assert [one.point for one in found if one is not None] == ["/srv/x", "/", "/proc"]


def test_the_own_mount_namespace_is_among_the_users_of_a_device():
    # Of the root: every namespace has that one.
    root = mountinfo.covering("/")
    assert root is not None
    namespaces = set()
    for pid in mountinfo.holders(root.device):
        try:
            namespaces.add(os.readlink(f"/proc/{pid}/ns/mnt"))
        except OSError:
            continue  # gone meanwhile
    assert os.readlink("/proc/self/ns/mnt") in namespaces
