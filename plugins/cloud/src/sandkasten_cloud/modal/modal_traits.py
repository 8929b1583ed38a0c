"""What sandboxes at Modal do not have. Pure."""

from __future__ import annotations

from typing import Final

from sandkasten.model.sandbox.limits import Unenforced
from sandkasten_cloud.differences import Difference, Traits

_ELSEWHERE: Final = "use the docker backend"

TRAITS: Final = Traits(
    title="Modal",
    networks=frozenset({"none", "full"}),
    unenforced=(
        Unenforced("pids", "Modal has no limit of processes", _ELSEWHERE),
        Unenforced("workspace", "Modal decides the size of the disk", _ELSEWHERE),
        Unenforced("tmp", "/tmp is on the disk of the sandbox", _ELSEWHERE),  # noqa: S108
        Unenforced("network", "Modal does not let us count or record connections"),
    ),
    own=(
        Difference(
            "images for other processors",
            "refused",
            "Modal runs images for linux/amd64",
            "name an image that is built for linux/amd64",
        ),
        Difference(
            "lifetimes of more than a day",
            "refused",
            "Modal ends every sandbox after 24 hours",
            "set backends.modal.lifetime_seconds to at most 86400",
        ),
        Difference(
            "processors",
            "differs",
            "a processor is a physical core of Modal, which is two of Linux",
        ),
        Difference(
            "sandboxes smaller than 0.125 processors and 128 MiB",
            "differs",
            "a smaller request gets this size, which is Modal's default",
        ),
        Difference(
            "a daemon that was killed",
            "differs",
            "its connections to a sandbox end with the sandbox, at most 96 of them",
        ),
    ),
)
