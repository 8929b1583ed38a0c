"""Named refusals for what an engine or an image does not support. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sandkasten.errors import (
    BackendUnavailable,
    InvalidImage,
    SandkastenError,
    UnsupportedByBackend,
)
from sandkasten.model.sandbox.inspection import TRUST_DIR
from sandkasten_docker.docker_engine.docker_client import Refused, translated
from sandkasten_docker.docker_engine.workspace_mode import user_namespaces

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sandkasten.model.ids import SandboxId
    from sandkasten.model.sandbox.cell_spec import CellSpec
    from sandkasten_docker.session_volumes import SessionVolumes

_ENVIRONMENT = ("argument list too long", "environment variable")
# The runner's message for an image in which its own program could be replaced.
_UNGUARDED = "not for root alone"
_DEVICES = ("device driver", "cdi", "nvidia", "device requests", "gpu")


def check(spec: CellSpec, info: Mapping[str, Any], place: SessionVolumes, section: str) -> None:
    """Raise for requests that this engine does not support, before anything is made. `section`
    is that of its settings.
    """
    if spec.workspace is not None and spec.workspace.kind != "volume" and not place.sized:
        why = "their volumes would have no size" if place.sized_volumes else "it makes no volumes"
        raise UnsupportedByBackend(
            f"this Docker Engine does not support named workspaces: {why}",
            hint=f"set {section}.workspace_mode: auto, or use the file store to carry files from "
            "one session to the next",
        )
    if spec.profile == "dev" and not user_namespaces(info):
        raise UnsupportedByBackend(
            "the dev profile would be root of the Docker Engine's own machine, because the Docker "
            "Engine maps no ids",
            hint="start dockerd with --userns-remap=default, or use the local backend",
        )


def check_volumes(
    spec: CellSpec, place: SessionVolumes, declared: Sequence[str], section: str
) -> None:
    """Raise if an image declares volumes and the engine has none to hold their content."""
    if declared and place.mode == "archive":
        raise UnsupportedByBackend(
            f"image {spec.image.name} declares volumes ({', '.join(declared)[:200]}), which no "
            "sandbox can have in the mode archive",
            hint=f"use an image without them, or another {section}.workspace_mode",
            image=spec.image.name,
        )
    over = [path for path in declared if f"{path}/".startswith(f"{TRUST_DIR}/")]
    over += [path for path in declared if f"{TRUST_DIR}/".startswith(f"{path}/")]
    if over and spec.inspection is not None:
        raise UnsupportedByBackend(
            f"image {spec.image.name} declares a volume at {over[0][:200]}, where the certificates "
            "of an inspected sandbox are mounted",
            hint="build it without that VOLUME, or create the sandbox without network.secrets and "
            "network.inspect",
            image=spec.image.name,
        )


def odd_environment(spec: CellSpec, why: str) -> InvalidImage | None:
    """Return the image's variables that cannot be passed on: they reach everything in it, the
    runner too.
    """
    if not any(words in why.lower() for words in _ENVIRONMENT):
        return None
    return InvalidImage(
        f"no program can be started with the environment of image {spec.image.name}: {why}",
        hint="remove invalid or very large values from its ENV",
        image=spec.image.name,
    )


def ended_early(sandbox_id: SandboxId, spec: CellSpec, why: str) -> SandkastenError:
    """Return the error for a container that ended right after its start; `why` is its output."""
    if _UNGUARDED in why:
        return InvalidImage(
            f"image {spec.image.name} cannot be used: {why}",
            hint="/run of the image must be a directory owned by root, and no mount target may be "
            "a symlink",
            image=spec.image.name,
        )
    return odd_environment(spec, why) or BackendUnavailable(
        f"sandbox {sandbox_id} ended right after its start: {why}", hint="run sandkasten doctor"
    )


def no_gpus(spec: CellSpec, why: str) -> UnsupportedByBackend | None:
    """Return the error for GPUs that the engine does not have."""
    if spec.gpus is None or not any(words in why.lower() for words in _DEVICES):
        return None
    return UnsupportedByBackend(
        f"the Docker Engine cannot give a sandbox GPUs: {why}",
        hint="install the vendor's container toolkit on the Docker Engine's machine, or request "
        "fewer or other devices",
        field="gpus",
    )


def unstarted(sandbox_id: SandboxId, spec: CellSpec, exc: Refused) -> SandkastenError:
    return (
        no_gpus(spec, exc.message)
        or odd_environment(spec, exc.message)
        or translated(exc, f"sandbox {sandbox_id} could not be started")
    )
