"""Settings `backends.modal.*`: the app at Modal, and how its sandboxes are made.

Contacts no server; a file with a token is checked when the settings are read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sandkasten.backends.cloud.machine_plan import CloudOptions
from sandkasten.backends.cloud.modal.modal_options import (
    FILE_HINT,
    MOST_LIFETIME_S,
    ModalOptions,
    token_in,
)
from sandkasten.daemon.settings.cloud import machine_settings
from sandkasten.errors import InvalidConfiguration
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model import lazy_pattern
from sandkasten.settings.setting_fields import setting
from sandkasten.settings.setting_parsers import invalid, path, seconds, secret_in, string

if TYPE_CHECKING:
    from pathlib import Path

_DEFAULT: Final = ModalOptions()
_CLOUD: Final = CloudOptions()
_NAME: Final = lazy_pattern.compile(r"[A-Za-z0-9._-]{1,64}\Z")


def object_name(name: str, value: object) -> str:
    found = string(name, value)
    if not _NAME.match(found):
        hint = "write at most 64 letters, digits, dots, _ and -"
        raise invalid(name, "a name at Modal", value, hint)
    return found


def lifetime(name: str, value: object) -> float:
    found = seconds(name, value)
    if found > MOST_LIFETIME_S:
        raise invalid(name, "at most a day", value, f"write {MOST_LIFETIME_S:g} or less")
    return found


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
class ModalSettings:
    enabled: bool = machine_settings.enabled("modal", "Modal")
    token_file: Path | None = setting(
        "backends.modal.token_file",
        path,
        None,
        "A file with the id of a token and its secret, one per line; default: MODAL_TOKEN_ID etc.",
    )
    app: str = setting(
        "backends.modal.app",
        object_name,
        _DEFAULT.app,
        "The app of the sandboxes; it is created if it does not exist.",
    )
    environment: str | None = setting(
        "backends.modal.environment",
        object_name,
        None,
        "The environment of the app; default: MODAL_ENVIRONMENT, or the default one.",
    )
    region: str | None = setting(
        "backends.modal.region",
        object_name,
        None,
        "The region of the sandboxes, such as eu; default: Modal chooses.",
    )
    lifetime_s: float = setting(
        "backends.modal.lifetime_seconds",
        lifetime,
        _CLOUD.lifetime_s,
        "How long a sandbox may live; Modal then ends it, with or without a daemon; at most 86400.",
    )
    start_s: float = setting(
        "backends.modal.start_timeout_seconds",
        seconds,
        _CLOUD.start_s,
        "How long a sandbox may take to start, building its image included.",
    )
    timeout_s: float = setting(
        "backends.modal.timeout_seconds",
        seconds,
        _DEFAULT.timeout_s,
        "How long one request to Modal may take.",
    )
    programs_dir: Path | None = setting(
        "backends.modal.programs_dir",
        path,
        None,
        "Programs of Sandkasten for linux/amd64; default: those of this machine.",
    )

    def options(self) -> ModalOptions:
        if self.token_file is not None:
            # The backend reads the file itself, so that a token can be replaced.
            secret_in("backends.modal.token_file", self.token_file, modal_token)
        return ModalOptions(
            app=self.app,
            environment=self.environment or "",
            token_file=self.token_file,
            timeout_s=self.timeout_s,
            cloud=CloudOptions(
                enabled=self.enabled,
                lifetime_s=self.lifetime_s,
                start_s=self.start_s,
                region=self.region or "",
                programs_dir=self.programs_dir,
            ),
        )
