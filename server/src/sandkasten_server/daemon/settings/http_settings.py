"""Settings of the HTTP server: where it listens, its key, its certificates.

Refuses with InvalidConfiguration what cannot be served safely. Opens no socket.
"""

from __future__ import annotations

from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from sandkasten.errors import InvalidConfiguration
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.addresses import is_loopback
from sandkasten.settings.setting_fields import masked, setting
from sandkasten.settings.setting_parsers import (
    Address,
    address,
    choice,
    path,
    seconds,
    secret,
    secret_in,
)
from sandkasten_runtime.assembly.settings.core_settings import GeneralSettings
from sandkasten_server.api.http_limits import HttpLimits

if TYPE_CHECKING:
    from sandkasten.ports.backend_plugins import SettingContext


@dataclass(frozen=True, slots=True)
class HttpSettings:
    listen: Address = setting(
        "listen",
        address,
        Address("127.0.0.1", 8080),
        "Where the daemon listens; any address but loopback requires a key.",
        show=str,
    )
    api_key: str | None = setting(
        "api_key",
        secret,
        None,
        "The operator's key. Better in a file or a variable than here.",
        show=masked,
    )
    api_key_file: Path | None = setting(
        "api_key_file",
        path,
        None,
        "A file that holds the operator's key, readable only by the daemon's user.",
    )
    db_file: Path | None = setting(
        "db_path", path, None, "The daemon's journal; default: sandkasten.db in data_dir."
    )
    tls_cert: Path | None = setting(
        "tls.cert", path, None, "A certificate chain in PEM; the daemon then serves HTTPS."
    )
    tls_key: Path | None = setting("tls.key", path, None, "The certificate's key, in PEM.")
    keep_alive_s: float = setting(
        "http.keep_alive_seconds", seconds, 75.0, "How long an idle connection is kept."
    )
    log_level: Literal["debug", "info", "warning", "error"] = setting(
        "telemetry.log_level",
        choice("debug", "info", "warning", "error"),
        "info",
        "debug, info, warning or error.",
    )
    drain_s: float = setting(
        "drain_seconds", seconds, 20.0, "How long a daemon that stops waits for running requests."
    )
    data_dir: Path = Path()
    socket: Path = Path("daemon.sock")
    limits: HttpLimits = field(default_factory=HttpLimits)

    @property
    def host(self) -> str:
        return self.listen.host

    @property
    def port(self) -> int:
        return self.listen.port

    @property
    def db_path(self) -> Path:
        return self.db_file or self.data_dir / "sandkasten.db"

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach the address."""
        return is_loopback(self.host)

    def completed(self, context: SettingContext) -> HttpSettings:
        """Return the settings with the key of `api_key_file` and the files of `data_dir`."""
        if (self.tls_cert is None) != (self.tls_key is None):
            raise InvalidConfiguration(
                "tls.cert and tls.key require each other, and one is missing",
                hint="name both files, or neither",
                setting="tls.cert",
            )
        key = self.api_key
        if key is None and self.api_key_file is not None:
            key = secret_in("api_key_file", self.api_key_file, secret)
        limits = context.of(HttpLimits)
        socket = context.of(GeneralSettings).socket(context.data_dir)
        return replace(self, api_key=key, data_dir=context.data_dir, socket=socket, limits=limits)


def require_key(rules: HttpSettings) -> None:
    """Refuse to listen beyond loopback without a key, for a server without a key store."""
    if not rules.loopback and rules.api_key is None:
        raise key_required(rules, "set api_key (SANDKASTEN_API_KEY), or listen on 127.0.0.1")


def key_required(rules: HttpSettings, hint: str) -> InvalidConfiguration:
    return InvalidConfiguration(
        f"listening on {rules.listen} requires a key: other machines can reach it",
        hint=hint,
        setting="listen",
    )
