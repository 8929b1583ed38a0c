"""Options of the backend modal: the app at Modal, and how its sandboxes are made.

Contacts no server; a file with a token is checked when the settings are read.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from sandkasten.errors import InvalidConfiguration
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model import lazy_pattern
from sandkasten.settings.setting_fields import setting
from sandkasten.settings.setting_parsers import invalid, path, seconds, secret_in, string
from sandkasten_cloud.provider_options import MissingSetting, enabled_setting

if TYPE_CHECKING:
    from pathlib import Path

    from sandkasten.ports.backend_plugins import SettingContext

MOST_LIFETIME_S: Final = 86_400.0
"""Modal ends every sandbox after a day."""
FILE_HINT: Final = "write the token's id on its first line and the secret on the second"
_TOKEN_WORDS: Final = 2
_TOKEN_VARIABLES: Final = ("MODAL_TOKEN_ID", "MODAL_TOKEN_SECRET")
VARIABLES: Final = " and ".join(_TOKEN_VARIABLES)
_NAME: Final = lazy_pattern.compile(r"[A-Za-z0-9._-]{1,64}\Z")


def object_name(name: str, value: object) -> str:
    text = string(name, value)
    if not _NAME.match(text):
        hint = "write at most 64 letters, digits, dots, _ and -"
        raise invalid(name, "a name at Modal", value, hint)
    return text


def lifetime(name: str, value: object) -> float:
    duration_s = seconds(name, value)
    if duration_s > MOST_LIFETIME_S:
        raise invalid(name, "at most a day", value, f"write {MOST_LIFETIME_S:g} or less")
    return duration_s


def modal_token(name: str, value: object) -> str:
    """Accept the content of a file with a token. No message repeats it."""
    if not isinstance(value, str) or token_in(value) is None:
        raise InvalidConfiguration(
            f"{name} must name a file with the id and the secret of a token",
            hint=FILE_HINT,
            setting=name,
        )
    return value


@dataclass(frozen=True, slots=True)
class ModalOptions:
    enabled: bool = enabled_setting("modal", "Modal")
    token_file: Path | None = setting(
        "backends.modal.token_file",
        path,
        None,
        "A file with the id of a token and its secret, one per line; default: MODAL_TOKEN_ID etc.",
    )
    app: str = setting(
        "backends.modal.app",
        object_name,
        "sandkasten",
        "The app of the sandboxes; it is created if it does not exist.",
    )
    environment: str = setting(
        "backends.modal.environment",
        object_name,
        "",
        "The environment of the app; default: MODAL_ENVIRONMENT, or the default one.",
    )
    region: str = setting(
        "backends.modal.region",
        object_name,
        "",
        "The region of the sandboxes, such as eu; default: Modal chooses.",
    )
    lifetime_s: float = setting(
        "backends.modal.lifetime_seconds",
        lifetime,
        3600.0,
        "How long a sandbox may live; Modal then ends it, with or without a daemon; at most 86400.",
    )
    start_s: float = setting(
        "backends.modal.start_timeout_seconds",
        seconds,
        120.0,
        "How long a sandbox may take to start, building its image included.",
    )
    timeout_s: float = setting(
        "backends.modal.timeout_seconds",
        seconds,
        60.0,
        "How long one request to Modal may take.",
    )
    programs_dir: Path | None = setting(
        "backends.modal.programs_dir",
        path,
        None,
        "Programs of Sandkasten for linux/amd64; default: those of this machine.",
    )

    def missing(self) -> MissingSetting | None:
        # The file was checked with the settings. What the SDK finds, only the SDK knows: here is
        # said that there is nothing to find.
        own = os.environ.get("MODAL_CONFIG_PATH") or os.path.expanduser("~/.modal.toml")
        if self.token_file is not None or os.path.exists(own):
            return None
        if all(os.environ.get(variable) for variable in _TOKEN_VARIABLES):
            return None
        return MissingSetting(
            "no token of Modal is set",
            f"set {VARIABLES}, or backends.modal.token_file to a file with the token",
        )

    def completed(self, context: SettingContext) -> ModalOptions:
        if self.token_file is not None:
            # The backend reads the file itself, so that a token can be replaced.
            secret_in("backends.modal.token_file", self.token_file, modal_token)
        return self


def token_in(text: str) -> tuple[str, str] | None:
    """Return the id and the secret of the token that a file has; None if it has another content."""
    words = text.split()
    return (words[0], words[1]) if len(words) == _TOKEN_WORDS else None
