"""Deviations of a trial container: each missing restriction is named."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from sandkasten_docker.selftest import deviations

# As an engine of 20.10 shows it, shortened.
MOUNTS = """\
600 500 0:50 / / ro,relatime - overlay overlay rw
601 600 0:51 / /proc rw,nosuid,nodev,noexec,relatime - proc proc rw
602 600 0:52 / /dev rw,nosuid - tmpfs tmpfs rw,size=65536k,mode=755
603 602 0:53 / /dev/pts rw,nosuid,noexec,relatime - devpts devpts rw
604 600 0:54 / /sys ro,nosuid,nodev,noexec,relatime - sysfs sysfs ro
605 604 0:55 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime - tmpfs tmpfs rw,mode=755
606 600 8:1 /a/workspace /workspace rw,relatime - ext4 /dev/vda rw
607 600 8:1 /a/home /home/sandbox rw,relatime - ext4 /dev/vda rw
608 600 0:56 / /run rw,nosuid,nodev - tmpfs tmpfs rw
609 608 8:1 /r /run/sandkasten/bin ro,relatime - ext4 /dev/vda rw
610 608 0:57 / /run/sandkasten/state rw,nosuid,nodev,noexec - tmpfs tmpfs rw
611 608 0:58 / /run/sandkasten/listen rw,nosuid,nodev,noexec - tmpfs tmpfs rw
612 600 0:59 / /tmp rw,nosuid,nodev - tmpfs tmpfs rw
613 600 8:1 /h /etc/hosts ro,relatime - ext4 /dev/vda rw
614 601 0:52 /null /proc/kcore rw,nosuid - tmpfs tmpfs rw
615 601 0:60 / /proc/acpi ro,relatime - tmpfs tmpfs ro
616 601 0:51 /sys /proc/sys ro,nosuid,nodev,noexec,relatime - proc proc rw
617 604 0:61 / /sys ro,relatime - tmpfs tmpfs ro
"""
GOOD: dict[str, Any] = {
    "status": {
        "Uid": "1000 1000 1000 1000",
        "Gid": "1000 1000 1000 1000",
        "Groups": "",
        **dict.fromkeys(("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"), "0000000000000000"),
        "NoNewPrivs": "1",
        "Seccomp": "2",
    },
    "mountinfo": MOUNTS,
    "descriptors": [0, 1, 2],
}


def seen(**changed: Any) -> dict[str, Any]:
    posture = copy.deepcopy(GOOD)
    for name, value in changed.items():
        if name in posture:
            posture[name] = value
        else:
            posture["status"][name] = value
    return posture


def test_a_confined_trial_container_has_no_deviations():
    assert deviations(GOOD) == []


@pytest.mark.parametrize(
    ("opened", "message"),
    [
        ({"CapEff": "0000000000000001"}, "CapEff"),
        ({"CapBnd": "00000000000000e0"}, "CapBnd"),
        ({"CapAmb": None}, "CapAmb"),
        ({"Uid": "1000 0 1000 1000"}, "Uid"),
        ({"Gid": "0 0 0 0"}, "Gid"),
        ({"NoNewPrivs": "0"}, "no_new_privs"),
        ({"Seccomp": "0"}, "seccomp"),
        ({"Groups": "0 27"}, "supplementary groups"),
        ({"descriptors": [0, 1, 2, 7]}, "descriptors"),
        ({"mountinfo": MOUNTS.replace("/ / ro,", "/ / rw,")}, "/ is writable"),
        ({"mountinfo": MOUNTS.replace("bin ro,", "bin rw,")}, "/run/sandkasten/bin is writable"),
        ({"mountinfo": MOUNTS.replace("hosts ro,", "hosts rw,")}, "/etc/hosts is writable"),
        ({"mountinfo": MOUNTS.replace("/proc/sys ro,", "/proc/sys rw,")}, "/proc/sys is writable"),
        ({"mountinfo": MOUNTS.replace("0:52 /null", "0:52 /kcore")}, "/proc/kcore is writable"),
        ({"mountinfo": "".join(MOUNTS.splitlines(True)[:-1])}, "/sys is not hidden"),
        (
            {"mountinfo": MOUNTS + "618 617 0:55 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n"},
            "/sys/fs/cgroup is writable",
        ),
        ({"mountinfo": ""}, "/sys is not hidden"),
    ],
)
def test_a_single_deviation_is_named(opened: dict[str, Any], message: str):
    problems = deviations(seen(**opened))
    assert any(message in line for line in problems), problems


def test_a_container_without_volumes_can_write_only_to_its_own_layer():
    open_root = MOUNTS.replace("/ / ro,", "/ / rw,").replace("hosts ro,", "hosts rw,")
    assert deviations(seen(mountinfo=open_root), writable_root=True) == []
    assert deviations(seen(mountinfo=open_root))
