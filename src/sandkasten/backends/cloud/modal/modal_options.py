"""Operator options for Modal: data only, checked where settings are read."""

from __future__ import annotations

import os
from dataclasses import field
from typing import TYPE_CHECKING, Final

from sandkasten.backends.cloud.machine_plan import CloudOptions, MissingSetting
from sandkasten.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from pathlib import Path

MOST_LIFETIME_S: Final = 86_400.0
"""Modal ends every sandbox after a day."""
FILE_HINT: Final = "write the token's id on its first line and the secret on the second"
_TOKEN_WORDS: Final = 2
_TOKEN_VARIABLES: Final = ("MODAL_TOKEN_ID", "MODAL_TOKEN_SECRET")
VARIABLES: Final = " and ".join(_TOKEN_VARIABLES)


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

    def missing(self) -> MissingSetting | None:
        # The file was checked with the settings. What the SDK finds, only the SDK knows: here is
        # said that there is nothing to find.
        own = os.environ.get("MODAL_CONFIG_PATH") or os.path.expanduser("~/.modal.toml")
        if self.token_file is not None or os.path.exists(own):
            return None
        if all(os.environ.get(one) for one in _TOKEN_VARIABLES):
            return None
        return MissingSetting(
            "no token of Modal is set",
            f"set {VARIABLES}, or backends.modal.token_file to a file with the token",
        )


def token_in(text: str) -> tuple[str, str] | None:
    """Return the id and the secret of the token that a file has; None if it has another content."""
    words = text.split()
    return (words[0], words[1]) if len(words) == _TOKEN_WORDS else None
