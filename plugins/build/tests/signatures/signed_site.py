"""A store, and catalogs on it with rules about signatures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from sandkasten.errors import UntrustedImage
from sandkasten_build.signatures.image_trust import ImageTrust
from sandkasten_runtime.images.catalog import Images
from sandkasten_runtime.images.image_sources import Sources
from sandkasten_runtime.images.layers.image_store import LayerStore
from sandkasten_runtime.images.registry.registry_credentials import Access

if TYPE_CHECKING:
    from pathlib import Path

    from sandkasten.model.images.trust_rules import TrustRule


class Site:
    """A store, and catalogs on it with rules about signatures."""

    def __init__(self, root: Path, host: str, tag: str) -> None:
        self.root = root
        self.host = host
        self.name = f"{host}/team/app:{tag}"
        self.store = LayerStore(root / "images")

    def catalog(self, *rules: TrustRule, pull: Any = "missing", **more: Any) -> Images:
        sources = Sources(
            self.store, registries={self.host: Access()}, trust=ImageTrust(rules) if rules else None
        )
        return Images(self.store, sources=sources, usr=self.root / "usr", pull=pull, **more)

    async def refused(self, *rules: TrustRule) -> str:
        """Return why a pull is refused; nothing of it is stored."""
        with pytest.raises(UntrustedImage) as refused:
            await self.catalog(*rules).resolve(self.name)
        assert refused.value.details["rule"] == "policy.images.signatures"
        assert self.store.layers() == []
        assert self.store.list() == []
        return refused.value.message
