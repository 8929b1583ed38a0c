"""The settings that `serve` alone needs: where it listens, its key, its certificates.

Built from values that `settings` has resolved; refuses with InvalidConfiguration what cannot
be served safely. Opens no socket.
"""

from __future__ import annotations

import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sandkasten.daemon.settings.setting_parsers import secret
from sandkasten.errors import InvalidConfiguration
from sandkasten.model.addresses import is_loopback

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sandkasten.daemon.settings.setting_parsers import Value


@dataclass(frozen=True, slots=True)
class HttpSettings:
    host: str = "127.0.0.1"
    port: int = 8080
    api_key: str | None = None
    db_path: Path = Path("sandkasten.db")
    socket: Path = Path("daemon.sock")
    tls_cert: Path | None = None
    tls_key: Path | None = None
    allowed_hosts: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    max_json_bytes: int = 16 << 20
    body_timeout_s: float = 8.0
    upload_timeout_s: float = 60.0
    keep_alive_s: float = 75.0
    metrics_open: bool = False
    log_level: str = "info"
    drain_s: float = 20.0

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach the address."""
        return is_loopback(self.host)


def require_key(rules: HttpSettings) -> None:
    """For a server that knows no key but the configured one."""
    if rules.loopback or rules.api_key is not None:
        return
    raise InvalidConfiguration(
        f"{rules.host}:{rules.port} can be reached from other machines, and there is no key",
        hint="set api_key (SANDKASTEN_API_KEY), or listen on 127.0.0.1",
        setting="listen",
    )


def http_settings(values: Mapping[str, Value], data_dir: Path) -> HttpSettings:
    host, _, port = str(values["listen"]).rpartition(":")
    cert, key = _path(values["tls.cert"]), _path(values["tls.key"])
    if (cert is None) != (key is None):
        raise InvalidConfiguration(
            "tls.cert and tls.key go together, and one is missing",
            hint="name both files, or neither",
            setting="tls.cert",
        )
    return HttpSettings(
        host=host.strip("[]"),
        port=int(port),
        api_key=_key(values),
        db_path=_path(values["db_path"]) or data_dir / "sandkasten.db",
        socket=_path(values["socket"]) or data_dir / "daemon.sock",
        tls_cert=cert,
        tls_key=key,
        allowed_hosts=_texts(values["http.allowed_hosts"]),
        allowed_origins=_texts(values["http.allowed_origins"]),
        max_json_bytes=int(_number(values["http.max_json_mb"]) * (1 << 20)),
        body_timeout_s=_number(values["http.body_timeout_seconds"]),
        upload_timeout_s=_number(values["http.upload_timeout_seconds"]),
        keep_alive_s=_number(values["http.keep_alive_seconds"]),
        metrics_open=values["telemetry.metrics"] == "open",
        log_level=str(values["telemetry.log_level"]),
        drain_s=_number(values["drain_seconds"]),
    )


def _key(values: Mapping[str, Value]) -> str | None:
    said, file = values["api_key"], values["api_key_file"]
    if said is not None or file is None:
        return None if said is None else str(said)
    path = Path(str(file))
    try:
        if path.stat().st_mode & (stat.S_IROTH | stat.S_IWOTH):
            raise InvalidConfiguration(
                f"{path} can be read by everybody on this machine",
                hint=f"chmod 600 {path}",
                setting="api_key_file",
            )
        return secret("api_key_file", path.read_text("ascii").strip())
    except (OSError, UnicodeDecodeError) as exc:
        reason = getattr(exc, "strerror", None) or type(exc).__name__
        raise InvalidConfiguration(
            f"the key in {path} cannot be read: {reason}",
            hint="write the key into it, one line",
            setting="api_key_file",
        ) from exc


def _path(value: Value) -> Path | None:
    return None if value is None else Path(str(value))


def _texts(value: Value) -> tuple[str, ...]:
    return tuple(value) if isinstance(value, list) else ()


def _number(value: Value) -> float:
    assert isinstance(value, int | float)
    return float(value)
