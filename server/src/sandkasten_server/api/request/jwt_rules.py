"""The operator's rules for tokens: which JSON Web Tokens are accepted, and what claims mean."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sandkasten.errors import InvalidConfiguration
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.addresses import is_loopback
from sandkasten.settings.setting_fields import masked, setting
from sandkasten.settings.setting_parsers import hs256_secret, http_url, path, seconds, string

if TYPE_CHECKING:
    from pathlib import Path

    from sandkasten.ports.backend_plugins import SettingContext

_KEYS = "jwt.jwks_url (or jwt.jwks_file, jwt.key_file, jwt.secret)"


def token_url(name: str, value: object) -> str:
    """Accept HTTPS, and plain HTTP on this machine: who changes the keys can sign any token."""
    url, parts = http_url(name, value, "the https URL of a key set", "https://host/jwks.json")
    if (
        parts.username
        or parts.password
        or not (parts.scheme == "https" or is_loopback(parts.hostname or ""))
    ):
        raise InvalidConfiguration(
            f"{name} must be an https URL without a password",
            hint="write https://host/jwks.json",
            setting=name,
        )
    return url


@dataclass(frozen=True, slots=True)
class TokenRules:
    """What a token must contain, the names of the claims that are read, and where keys are."""

    issuer: str | None = setting(
        "jwt.issuer", string, None, "The `iss` of accepted tokens; required to accept any."
    )
    audience: str | None = setting(
        "jwt.audience", string, None, "The `aud` of accepted tokens; required to accept any."
    )
    jwks_url: str | None = setting(
        "jwt.jwks_url", token_url, None, "Where the issuer publishes its keys (JWKS)."
    )
    jwks_file: Path | None = setting("jwt.jwks_file", path, None, "A file with a JSON Web Key Set.")
    key_file: Path | None = setting(
        "jwt.key_file", path, None, "Public keys in PEM: RSA (RS256), P-256 (ES256) or Ed25519."
    )
    shared_secret: str | None = setting(
        "jwt.secret",
        hs256_secret,
        None,
        "A shared secret for HS256: 32 to 512 ASCII characters.",
        show=masked,
    )
    tenant_claim: str = setting("jwt.tenant_claim", string, "tenant", "The claim with the tenant.")
    scope_claim: str = setting(
        "jwt.scope_claim",
        string,
        "scope",
        "The claim with the scopes, a string or a list; without it a token has the default ones.",
    )
    quota_claim: str = setting(
        "jwt.quota_claim", string, "quota", "The claim with quotas, an object."
    )
    leeway_s: float = setting(
        "jwt.leeway_seconds", seconds, 30.0, "How much the issuer's clock may differ."
    )
    refresh_s: float = setting(
        "jwt.refresh_seconds", seconds, 300.0, "How often keys are read again."
    )

    @property
    def enabled(self) -> bool:
        return self.issuer is not None

    def completed(self, context: SettingContext) -> TokenRules:
        """Return the settings; InvalidConfiguration if tokens could not be verified safely."""
        sources = (self.jwks_url, self.jwks_file, self.key_file, self.shared_secret)
        keys = next((source for source in sources if source is not None), None)
        needed = {"jwt.issuer": self.issuer, "jwt.audience": self.audience, _KEYS: keys}
        missing = [name for name, value in needed.items() if value is None]
        if len(missing) == len(needed):
            return self
        if missing:
            raise InvalidConfiguration(
                f"tokens require jwt.issuer, jwt.audience and keys; {missing[0]} is not set",
                hint=f"set {' and '.join(missing)}, or none of jwt.*",
                setting="jwt.issuer",
            )
        return self
