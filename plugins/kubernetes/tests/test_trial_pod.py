"""What the self-test accepts: the posture of a command inside, and a network that is closed."""

from __future__ import annotations

from typing import Any

import pytest

from sandkasten.errors import BackendUnavailable
from sandkasten_kubernetes import selftest

GOOD: dict[str, Any] = {
    "status": {
        **{f"Cap{name}": "0000000000000000" for name in ("Inh", "Prm", "Eff", "Bnd", "Amb")},
        "Uid": "1000\t1000\t1000\t1000",
        "Gid": "1000\t1000\t1000\t1000",
        # containerd adds the group of the process itself.
        "Groups": "1000",
        "NoNewPrivs": "1",
        "Seccomp": "2",
    },
    "descriptors": [0, 1, 2],
}


def test_a_closed_pod_passes():
    assert selftest.deviations(GOOD) == []


@pytest.mark.promise("P100")
@pytest.mark.parametrize(
    ("change", "about"),
    [
        ({"CapBnd": "00000000a80425fb"}, "CapBnd"),
        ({"Uid": "1000\t0\t1000\t1000"}, "Uid"),
        ({"NoNewPrivs": "0"}, "no_new_privs"),
        ({"Seccomp": "0"}, "seccomp"),
        ({"Groups": "1000 27"}, "groups"),
    ],
)
def test_anything_more_open_is_named(change, about):
    problems = selftest.deviations({**GOOD, "status": {**GOOD["status"], **change}})
    assert len(problems) == 1
    assert about in problems[0]


def test_a_posture_that_says_nothing_does_not_pass():
    assert len(selftest.deviations({})) >= 8
    assert selftest.deviations({**GOOD, "descriptors": [0, 1, 2, 7]})


@pytest.mark.promise("P100")
def test_an_address_that_can_be_reached_is_named():
    text = "closed 10.96.0.1:443\nopen 10.0.0.1:6443\nopen\nopen a b\n"
    assert selftest.open_addresses(text) == ["10.0.0.1:6443"]
    assert selftest.open_addresses("closed 10.0.0.1:6443\n") == []


@pytest.mark.parametrize("text", ["", "no such program\n"])
def test_a_test_that_did_not_happen_is_not_passed(text):
    with pytest.raises(BackendUnavailable):
        selftest.open_addresses(text)


class _CutStream:
    """A stream of an API server that goes away."""

    id = "trial_0123456789abcdef"
    network_class = "closed"

    async def stream(self, *_: object) -> _CutStream:
        return self

    async def receive(self, max_bytes: int) -> bytes:
        raise ConnectionResetError("cut off")

    async def aclose(self) -> None:
        pass


async def test_a_test_of_the_network_that_is_cut_off_is_named():
    cut: Any = _CutStream()
    with pytest.raises(BackendUnavailable, match="cut off"):
        await selftest.examine_network(cut, cut, "egress", ["192.0.2.1:443"])
