"""The operator's rules for previews: their domain and its certificate, and who may open them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from sandkasten.errors import InvalidConfiguration
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.access.preview_links import checked_domain
from sandkasten.settings.setting_fields import setting
from sandkasten.settings.setting_parsers import Address, address, boolean, domain, path

if TYPE_CHECKING:
    from sandkasten.ports.backend_plugins import SettingContext


@dataclass(frozen=True, slots=True)
class PreviewRules:
    domain_text: str | None = setting(
        "previews.domain",
        domain,
        None,
        "A domain whose names lead to the daemon, as https://{port}-{id}.{domain}.",
    )
    listen: Address | None = setting(
        "previews.listen",
        address,
        None,
        "Where the daemon serves previews.domain over TLS; default: only on its own address.",
        show=str,
    )
    cert: Path | None = setting(
        "previews.cert",
        path,
        None,
        "A certificate chain for *.{domain}, in PEM; default: one of the daemon's own authority.",
    )
    key: Path | None = setting("previews.key", path, None, "The certificate's key, in PEM.")
    allow_public: bool = setting(
        "previews.allow_public",
        boolean,
        True,
        "Whether a client may make a preview public, so that it opens without a signed link.",
    )
    data_dir: Path = Path()

    @property
    def domain(self) -> str | None:
        return None if self.domain_text is None else checked_domain("", self.domain_text)[0]

    @property
    def domain_port(self) -> int | None:
        """The port that links name: the one that is written, or the daemon's own."""
        written = None if self.domain_text is None else checked_domain("", self.domain_text)[1]
        return written or (None if self.listen is None else self.listen.port or None)

    @property
    def directory(self) -> Path:
        return self.data_dir / "previews"

    def completed(self, context: SettingContext) -> PreviewRules:
        """Return the rules with the files of the data directory; refuse those that contradict."""
        if (self.cert is None) != (self.key is None):
            raise InvalidConfiguration(
                "previews.cert and previews.key require each other, and one is missing",
                hint="name both files, or neither",
                setting="previews.cert",
            )
        if self.listen is not None and self.domain_text is None:
            raise InvalidConfiguration(
                "previews.listen requires previews.domain",
                hint="set previews.domain, such as preview.example.com",
                setting="previews.listen",
            )
        return replace(self, data_dir=context.data_dir)
