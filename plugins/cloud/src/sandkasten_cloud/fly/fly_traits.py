"""What Fly Machines can and cannot do, as data."""

from __future__ import annotations

from typing import Final

from sandkasten.model.sandbox.limits import Unenforced
from sandkasten_cloud.differences import Difference, Traits

_DISK: Final = "the files of a machine share its disk of 8 GB"

TRAITS: Final = Traits(
    title="Fly",
    networks=frozenset({"none", "full"}),
    unenforced=(
        Unenforced(
            "cpu",
            "Fly has machines of 1, 2, 4, 6 and more processors: a sandbox gets the next size",
            "request 1, 2, 4, 6 or 8 processors",
        ),
        Unenforced(
            "memory",
            "Fly has memory in steps of 256 MiB: a sandbox gets the next one",
            "request a multiple of 256 MiB",
        ),
        Unenforced("workspace", _DISK),
        Unenforced("tmp", _DISK),
        Unenforced("pids", "a machine has no limit of processes of its own"),
        Unenforced("network", "Fly does not let us count or record connections"),
    ),
    own=(
        Difference(
            "images without our programs",
            "refused",
            "the programs are too large for the configuration of a machine",
            "copy them into the image, as docs/guides/cloud.md shows",
        ),
        Difference(
            "end of life",
            "differs",
            "Fly does not end machines by time: the gate ends, and the machine is then destroyed",
        ),
        Difference(
            "network: none",
            "differs",
            "Fly cannot close the network of a machine: the runner is in a network namespace, "
            "which only root of the machine can leave; 32-bit programs do not run in it",
        ),
        Difference(
            "network: full",
            "differs",
            "machines of one private network of Fly reach each other",
            "give the app a network of its own",
        ),
        Difference(
            "creates in a row",
            "differs",
            "Fly creates one machine of an app per second, with bursts of three; more wait",
        ),
    ),
)
