"""What sandboxes at E2B have and do not have: data, without the SDK."""

from __future__ import annotations

from typing import Final

from sandkasten.model.sandbox.limits import Unenforced
from sandkasten_cloud.differences import Difference, Traits

TITLE: Final = "E2B"
_TEMPLATE: Final = "it is a property of the template at E2B"
_REMEDY: Final = "build a template with the size you need, and name it as the image"

TRAITS: Final = Traits(
    title=TITLE,
    networks=frozenset({"none", "full"}),
    unenforced=(
        Unenforced("cpu", _TEMPLATE, _REMEDY),
        Unenforced("memory", _TEMPLATE, _REMEDY),
        Unenforced("workspace", _TEMPLATE, _REMEDY),
        Unenforced("tmp", "/tmp is on the disk of the machine", _REMEDY),  # noqa: S108
        Unenforced("pids", "E2B has no limit of processes", _REMEDY),
        Unenforced("network", "E2B does not let us count or record connections"),
    ),
    own=(
        Difference(
            "image",
            "differs",
            "an image is a template of E2B; aliases such as python are backends.e2b.template",
        ),
        Difference(
            "lifetime",
            "differs",
            "E2B ends a sandbox after backends.e2b.lifetime_seconds, even if its lease is longer",
        ),
    ),
)
