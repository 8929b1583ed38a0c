"""Operator options for Modal: data only, checked where settings are read."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Final

from sandkasten.backends.cloud.machine_plan import CloudOptions
from sandkasten.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from pathlib import Path

MOST_LIFETIME_S: Final = 86_400.0
"""Modal ends every sandbox after a day."""


@dataclass(frozen=True, slots=True)
class ModalOptions:
    app: str = "sandkasten"
    """The app of the sandboxes; made if it is missing."""
    environment: str = ""
    """The environment of the app; empty: that of the SDK's own configuration."""
    token_file: Path | None = None
    """Its first line is the token's id, its second the secret; None: the SDK's own variables and
    file."""
    timeout_s: float = 60.0
    """How long one request may take, with what the SDK repeats of it."""
    cloud: CloudOptions = field(default_factory=CloudOptions)
