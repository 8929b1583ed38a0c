"""Images from registries, within the operator's rules and limits.

Imports what fetches them only when it is used: most processes never fetch anything.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from sandkasten.errors import PayloadTooLarge, QuotaExceeded
from sandkasten.ports.pull_limits import PullLimits
from sandkasten_runtime.images.registry.image_reference import DOCKER_HUB, parse_reference

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sandkasten.model.images.image_info import OnProgress, PullRequest
    from sandkasten_runtime.images.image_plugins import SignatureCheck
    from sandkasten_runtime.images.layers.image_store import LayerStore, StoredImage
    from sandkasten_runtime.images.registry.puller import Puller
    from sandkasten_runtime.images.registry.registry_credentials import Access
    from sandkasten_runtime.images.registry.registry_http import Patience

# A request waits: a machine without a network must fail within seconds.
_REQUEST_ATTEMPTS = 3
_REQUEST_CONNECT_S = 5.0


class Sources:
    """`registries` are the settings of each registry, by host; `trust` has the rules about
    signatures.
    """

    def __init__(
        self,
        store: LayerStore,
        *,
        registries: Mapping[str, Access] | None = None,
        limits: PullLimits | None = None,
        trust: SignatureCheck | None = None,
    ) -> None:
        self._store = store
        self.trust = trust
        self._registries = dict(registries or {})
        self._limits = limits or PullLimits()

    def knows_registry(self, name: str) -> bool:
        """Return whether requests may name any image of this registry."""
        registry = parse_reference(name).registry
        return registry == DOCKER_HUB or registry in self._registries

    async def pull(
        self, request: PullRequest, *, progress: OnProgress | None = None
    ) -> StoredImage:
        from sandkasten_runtime.images.registry.registry_http import Patience

        patience = Patience(whole_s=self._limits.seconds)
        puller = self._puller(patience, self._limits.image_bytes, unsigned=True)
        return await puller.pull(request.name, platform=request.platform, progress=progress)

    async def pull_for_request(self, name: str, progress: OnProgress | None) -> StoredImage:
        """Pull within the limits of the store too, and give up soon without a network."""
        from sandkasten_runtime.images.registry.registry_http import Patience

        used = await asyncio.to_thread(lambda: sum(layer.bytes for layer in self._store.layers()))
        remaining = self._limits.store_bytes - used
        patience = Patience(
            attempts=_REQUEST_ATTEMPTS, connect_s=_REQUEST_CONNECT_S, whole_s=self._limits.seconds
        )
        most = self._limits.image_bytes
        puller = self._puller(patience, min(most, max(remaining, 0)), unsigned=False)
        try:
            return await puller.pull(name, progress=progress)
        except PayloadTooLarge as exc:
            if remaining >= most:
                raise
            raise QuotaExceeded(
                f"image {name} does not fit into the store: {exc.message}",
                hint="remove images (sandkasten image rm, image gc), or raise images.max_bytes",
                image=name,
            ) from exc

    def _puller(self, patience: Patience, max_bytes: int, *, unsigned: bool) -> Puller:
        from sandkasten_runtime.images.registry.puller import Puller
        from sandkasten_runtime.images.registry.registry_credentials import Keyring

        return Puller(
            self._store,
            Keyring(self._registries),
            patience=patience,
            max_bytes=max_bytes,
            trust=self.trust,
            unsigned=unsigned,
        )
