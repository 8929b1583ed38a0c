"""Deviations of a live process: each one is found, and a confined process has none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sandkasten_runtime.linux.confinement.posture import NAMESPACES, Posture, deviations

IDS = range(0x70000000, 0x70010000)
HOST = Posture({}, {n: f"{n}:[1]" for n in NAMESPACES}, "", (), 0)
CLOSED = Posture(
    status={
        **dict.fromkeys(("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"), "0000000000000000"),
        "NoNewPrivs": "1",
        "Seccomp": "2",
        "Uid": "1879049192\t1879049192\t1879049192\t1879049192",
        "Gid": "1879049192\t1879049192\t1879049192\t1879049192",
        "Groups": "",
    },
    namespaces={n: f"{n}:[2]" for n in NAMESPACES},
    mountinfo=(
        "65 42 0:40 /newroot / ro,nosuid,nodev,relatime - tmpfs tmpfs rw\n"
        "66 65 254:0 /usr /usr ro,nosuid,nodev,relatime - ext4 /dev/vda rw\n"
        "70 69 0:6 /null /dev/null rw,nosuid,relatime - devtmpfs devtmpfs rw\n"
        "71 65 7:0 /workspace /workspace rw,nosuid,nodev,noatime - ext4 /dev/loop0 rw\n"
    ),
    descriptors=(0, 1, 2),
    oom_score_adj=500,
)


def test_a_confined_process_has_no_deviation() -> None:
    assert deviations(CLOSED, HOST, ids=IDS) == []


@pytest.mark.promise("P04")
@pytest.mark.parametrize(
    ("field", "value", "complaint"),
    [
        ("CapBnd", "00000000000001e0", "CapBnd is not empty: 00000000000001e0"),
        ("NoNewPrivs", "0", "no_new_privs is not set"),
        ("Seccomp", "0", "no seccomp filter is in force"),
        ("Uid", "0 1 1 1", "Uid is 0 on the host"),
        (
            "Gid",
            "1000 1000 1000 1000",
            "Gid [1000, 1000, 1000, 1000] is outside the sandbox's range",
        ),
        ("Groups", "27", "supplementary groups were inherited: 27"),
    ],
)
def test_each_deviation_in_the_status_is_named(field: str, value: str, complaint: str) -> None:
    seen = replace(CLOSED, status={**CLOSED.status, field: value})
    assert deviations(seen, HOST, ids=IDS) == [complaint]


@pytest.mark.parametrize("name", NAMESPACES)
def test_a_shared_namespace_is_named(name: str) -> None:
    seen = replace(CLOSED, namespaces={**CLOSED.namespaces, name: HOST.namespaces[name]})
    assert deviations(seen, HOST, ids=IDS) == [f"the {name} namespace is the host's"]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("1 1 0:1 / /sys ro,nosuid,nodev - sysfs sysfs rw", "sysfs is mounted on /sys"),
        ("1 1 0:1 / /opt ro,nodev - ext4 x rw", "/opt is not nosuid"),
        ("1 1 0:1 / /opt ro,nosuid - ext4 x rw", "/opt is not nodev"),
        ("1 1 0:1 / /etc rw,nosuid,nodev - ext4 x rw", "/etc is writable"),
        ("1 1 0:1 / /usr ro,nosuid,nodev shared:3 - ext4 x rw", "/usr is not private"),
    ],
)
def test_each_writable_or_unrestricted_mount_is_named(line: str, complaint: str) -> None:
    seen = replace(CLOSED, mountinfo=CLOSED.mountinfo + line + "\n")
    assert deviations(seen, HOST, ids=IDS) == [complaint]


def test_an_inherited_descriptor_is_named() -> None:
    seen = replace(CLOSED, descriptors=(0, 1, 2, 7))
    assert deviations(seen, HOST, ids=IDS) == ["descriptors were inherited: (0, 1, 2, 7)"]
