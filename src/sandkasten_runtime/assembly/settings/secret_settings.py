"""The key that encrypts stored secrets: from a setting, a file, or a credential of systemd."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from sandkasten.lazy_dataclass import dataclass
from sandkasten.settings.setting_fields import masked, setting
from sandkasten.settings.setting_parsers import hs256_secret as secret
from sandkasten.settings.setting_parsers import path, secret_in

if TYPE_CHECKING:
    from collections.abc import Mapping

_CREDENTIAL: Final = "sandkasten-secrets-key"


@dataclass(frozen=True, slots=True)
class SecretSettings:
    key: str | None = setting(
        "secrets.key",
        secret,
        None,
        "The key that encrypts stored secrets. Better in a file or a variable than here.",
        show=masked,
    )
    key_file: Path | None = setting(
        "secrets.key_file",
        path,
        None,
        "A file that holds the key of the secrets; default: one below data_dir, made at first use.",
    )

    def found(self, environ: Mapping[str, str]) -> str | None:
        """Return the key; None: one of the data directory's own."""
        if self.key is not None:
            return self.key
        file = self.key_file
        if file is None and environ.get("CREDENTIALS_DIRECTORY"):
            credential = Path(environ["CREDENTIALS_DIRECTORY"], _CREDENTIAL)
            file = credential if credential.is_file() else None
        return None if file is None else secret_in("secrets.key_file", file, secret)
