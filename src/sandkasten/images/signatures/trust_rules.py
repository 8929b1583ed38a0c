"""The operator's rules about signatures, as values. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sandkasten.images.image_names import canonical_name, is_id
from sandkasten.images.registry.image_reference import parse_reference
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.spelling import wildcard_match

if TYPE_CHECKING:
    from collections.abc import Sequence


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

    def covers(self, name: str) -> bool:
        spelled = [name] if is_id(name) else [canonical_name(name), parse_reference(name).full]
        return any(wildcard_match(one, text) for one in self.images for text in spelled)

    def __str__(self) -> str:
        how = "unsigned" if self.unsigned else f"key {self.key}" if self.key else self.identity
        return f"{', '.join(self.images)}: {how}"


def covering(rules: Sequence[TrustRule], name: str) -> list[TrustRule]:
    return [one for one in rules if one.covers(name)]
