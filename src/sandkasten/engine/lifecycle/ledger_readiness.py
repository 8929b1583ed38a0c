"""The readiness of a backend together with that of its ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sandkasten.model.sandbox.readiness import with_requirements
from sandkasten.ports import HasExtras, HasRequirements

if TYPE_CHECKING:
    from sandkasten.model.sandbox.readiness import Readiness
    from sandkasten.ports import Backend, Store


async def probed(backend: Backend, store: Store) -> Readiness:
    """Return what a create needs, without a trial of anything else."""
    found = await backend.probe()
    if not isinstance(store, HasRequirements):
        return found
    return with_requirements(found, await store.requirements())


async def with_extras(found: Readiness, store: Store) -> Readiness:
    """Add the lines of `doctor` about what the ledger can do without."""
    if not isinstance(store, HasExtras):
        return found
    return with_requirements(found, await store.extras())
