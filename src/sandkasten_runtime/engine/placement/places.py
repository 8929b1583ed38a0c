"""The place of a sandbox on a platform that has several (see `ports.Places`), or that is gone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sandkasten.disk.process_identity import boot_id
from sandkasten.errors import BackendUnavailable, SandboxLost
from sandkasten.model.backends.capabilities import Capabilities
from sandkasten.model.backends.named_backends import kind_of, named_setting, own_name
from sandkasten.model.optional_extras import SECTION_EXTRAS, install_command
from sandkasten.model.sandbox.readiness import Readiness
from sandkasten.ports import Places, backend_part

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

    from sandkasten.model.ids import SandboxId
    from sandkasten.model.sandbox.cell_spec import CellSpec
    from sandkasten.model.sandbox.ledger_record import Record
    from sandkasten.ports import Backend, Cell, Clock

# The runner ends itself at its lifetime; the engine acts only if it did not.
LIFETIME_SLACK_S: Final = 10.0


async def located(backend: Backend, record: Record) -> Backend:
    """Return the backend, which now knows where the sandbox of this row is."""
    if record.place and backend.capabilities.default_place:
        (await backend_part(backend, Places)).note_place(record.id, record.place)
    return backend


def has_departed(record: Record, backends: Container[str], clock: Clock) -> bool:
    """Return whether a sandbox has ended itself on a backend that is not here any more: it
    left the settings, or its plugin was uninstalled. What is left of the sandbox is removed when
    the backend is added again.
    """
    if record.backend in backends:
        return False
    age_s = clock.boottime() - record.created_boottime
    if record.boot_id != boot_id():
        age_s = clock.now() - record.created_at
    return age_s > record.lifetime_s + LIFETIME_SLACK_S


def not_configured(backend: str, backends: Mapping[str, Backend]) -> BackendUnavailable:
    """Return the error for what belongs to a backend that is not here (any more)."""
    main = backends.get(kind_of(backend))
    if main is not None and main.capabilities.named_by:
        name, kind = own_name(backend), main.capabilities
        return BackendUnavailable(
            f"{kind.platform} {name} is not in the settings any more",
            hint=f"add {name} to {named_setting(backend, kind)} again: what it has is kept there",
            backend=backend,
        )
    message, known = f"backend {backend} is not installed here", ", ".join(sorted(backends))
    extra = SECTION_EXTRAS.get(f"backends.{kind_of(backend)}")
    if extra is not None:
        return BackendUnavailable(
            message,
            hint=f"on the daemon's machine: {install_command(extra)}; then restart the daemon",
            backend=backend,
            extra=extra,
        )
    return BackendUnavailable(
        message,
        hint="if a plugin brings it, install it again: what it has is kept there; installed "
        f"are: {known}",
        backend=backend,
    )


class DepartedBackend:
    """Stands for a backend that is not here any more: it has nothing that can be reached or
    removed.
    """

    name = "departed"
    capabilities = Capabilities(external=True)

    async def probe(self) -> Readiness:
        return Readiness(ready=False, reason="it is not installed, or not in the settings any more")

    async def create(self, sandbox_id: SandboxId, spec: CellSpec) -> Cell:
        raise not_configured(self.name, {})

    async def attach(self, sandbox_id: SandboxId) -> Cell:
        raise SandboxLost(f"sandbox {sandbox_id} is not running", hint="create a new one")

    async def owned(self) -> tuple[SandboxId, ...]:
        return ()

    async def discard(self, sandbox_id: SandboxId) -> None:
        """Do nothing: no part of it can be reached."""

    async def ping(self) -> None:
        raise not_configured(self.name, {})

    async def aclose(self) -> None:
        """Do nothing: no connection is open."""


DEPARTED: Final = DepartedBackend()
