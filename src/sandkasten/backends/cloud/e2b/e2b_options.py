"""Operator options for E2B: data only, checked where settings are read."""

from __future__ import annotations

from dataclasses import field
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from sandkasten.backends.cloud.machine_plan import CloudOptions, MissingSetting
from sandkasten.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

KEY_VARIABLE: Final = "E2B_API_KEY"


@dataclass(frozen=True, slots=True)
class E2bOptions:
    api_key: str = field(default="", repr=False)
    domain: str = ""
    """Empty: E2B's own."""
    api_url: str = ""
    """Empty: made from the domain."""
    sandbox_url: str = ""
    """Where all sandboxes are reached, for a service without a domain; empty: by their names."""
    template: str = "base"
    """The template of a request that names no image, or one of our aliases."""
    templates: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Templates by the name of the image that requests have."""
    timeout_s: float = 30.0
    """Deadline of one request."""
    cloud: CloudOptions = field(default_factory=CloudOptions)

    def missing(self) -> MissingSetting | None:
        if self.api_key:
            return None
        return MissingSetting(
            "backends.e2b.api_key is not set",
            f"set {KEY_VARIABLE}, or backends.e2b.api_key_file to a file with the key",
        )
