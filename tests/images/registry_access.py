"""An image in a registry, and a registry client with short timeouts."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from sandkasten_runtime.images.registry.image_reference import Reference, parse_reference
from sandkasten_runtime.images.registry.manifests import Index, Manifest
from sandkasten_runtime.images.registry.registry_client import Registry, opened
from sandkasten_runtime.images.registry.registry_credentials import Access
from sandkasten_runtime.images.registry.registry_http import Patience
from tests.images import registries
from tests.images.registries import PASSWORD, USER
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractAsyncContextManager

# Three attempts a few milliseconds apart: nobody here does better at a fourth. Silence is that of a
# busy machine, and is sat out.
QUICK = Patience(
    attempts=3, first_pause_s=0.01, connect_s=PATIENCE_S, silence_s=PATIENCE_S, whole_s=100
)
BIG = os.urandom(3_000_000)
MADE = registries.image(registries.layer({"hello": b"hi", "big": BIG}))
LOGIN = Access(username=USER, password=PASSWORD)
BASIC = {"Authorization": LOGIN.basic() or ""}


def at(host: str, rest: str = "team/app:1") -> Reference:
    return parse_reference(f"{host}/{rest}")


def open_registry(
    host: str,
    access: Access | None = None,
    *,
    patience: Patience = QUICK,
    rest: str = "team/app:1",
    environ: Mapping[str, str] | None = None,
) -> AbstractAsyncContextManager[Registry]:
    return opened(at(host, rest), access or Access(), patience, environ=environ or {})


async def reach(host: str, access: Access | None = None, **more) -> None:
    """Open a registry and close it again."""
    async with open_registry(host, access, **more):
        pass


async def read_manifest(
    host: str, wanted: str = "1", access: Access | None = None, *, patience: Patience = QUICK
) -> tuple[Index | Manifest, str]:
    async with open_registry(host, access, patience=patience) as registry:
        return await registry.manifest(wanted)


async def manifest_of(registry: Registry, wanted: str = "1") -> Manifest:
    found, _ = await registry.manifest(wanted)
    assert isinstance(found, Manifest)
    return found
