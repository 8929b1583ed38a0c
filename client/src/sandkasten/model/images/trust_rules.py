"""The operator's rules about signatures of images, as values."""

from __future__ import annotations

from sandkasten.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class TrustRule:
    """Which images, and whose signature they need: a key's, a certificate's, or none."""

    images: tuple[str, ...] = ("*",)
    """Names, with their registry or as usual; `*` stands for any characters."""
    key: str = ""
    """Path of a public key in PEM."""
    identity: str = ""
    issuer: str = ""
    root: str = ""
    """Path of the root certificates in PEM."""
    log_key: str = ""
    """Path of the public key of the transparency log in PEM."""
    unsigned: bool = False
    """They need none once they are in the store; a request still pulls only what is signed."""

    def __str__(self) -> str:
        how = "unsigned" if self.unsigned else f"key {self.key}" if self.key else self.identity
        return f"{', '.join(self.images)}: {how}"
