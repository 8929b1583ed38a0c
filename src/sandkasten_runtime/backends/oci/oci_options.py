"""Options of the backend oci: its runtime, and the devices of the host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from sandkasten.lazy_dataclass import dataclass
from sandkasten.settings.setting_fields import setting
from sandkasten.settings.setting_parsers import boolean, choice, string_list

if TYPE_CHECKING:
    from sandkasten.ports.backend_plugins import SettingContext


@dataclass(frozen=True, slots=True)
class OciOptions:
    runtime: Literal["runc", "crun"] = setting(
        "oci.runtime", choice("runc", "crun"), "runc", "The runtime of backend oci: runc or crun."
    )
    cdi_dirs: tuple[str, ...] = setting(
        "oci.cdi_dirs",
        string_list,
        ("/etc/cdi", "/var/run/cdi"),
        "Where specifications of devices (Container Device Interface) are.",
    )
    cdi_hooks: bool = setting(
        "oci.cdi_hooks",
        boolean,
        False,
        "Whether hooks of these specifications, which run on the host, are used.",
    )
    strict: bool = setting(
        "oci.strict",
        boolean,
        False,
        "Whether a runc with known escapes is refused instead of reported.",
    )

    def completed(self, context: SettingContext) -> OciOptions:
        return self
