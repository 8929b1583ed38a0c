"""What Fly Machines can and cannot do, as data."""

from __future__ import annotations

from typing import Final

from sandkasten.backends.cloud.differences import Difference, Traits
from sandkasten.model.sandbox.limits import Unenforced

_DISK: Final = "the files of a machine share its disk of 8 GB"

TRAITS: Final = Traits(
    title="Fly",
    networks=frozenset({"none", "full"}),
    unenforced=(
        Unenforced(
            "cpu",
            "Fly has machines of 1, 2, 4, 6 and more processors: a sandbox gets the next size",
            "ask for a size that Fly has",
        ),
        Unenforced(
            "memory",
            "Fly has memory in steps of 256 MiB: a sandbox gets the next one",
            "ask for a multiple of 256 MiB",
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
            "the configuration of a machine is too small for them",
            "COPY --from the daemon's image, as docs/guides/cloud.md shows",
        ),
        Difference(
            "end of life",
            "differs",
            "Fly has none: the gate ends the machine, which is destroyed when its first process "
            "ends",
        ),
        Difference(
            "network: none",
            "differs",
            "Fly cannot close the network of a machine: the runner has one of its own inside, "
            "which only root of the machine can leave",
        ),
        Difference(
            "creates in a row",
            "differs",
            "Fly makes one machine of an app in a second, and three at once; more wait",
        ),
    ),
)
