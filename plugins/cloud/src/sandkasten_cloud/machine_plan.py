"""The machine of one sandbox: a function of the spec and the operator's options.

Our programs and the key of the sandbox are brought into the machine. One of them is started there
as root: the gate, which starts the runner as another user, and code is a third one
(`runner/src/gate/machine.rs`). So code can neither read the key nor signal gate or runner.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Final

from sandkasten.errors import BackendUnavailable
from sandkasten.model.sandbox.cell_spec import (
    HOME,
    RUNNER_ID,
    USER_ID,
    WORKSPACE,
    base_environment,
)
from sandkasten_cloud.differences import network_mode
from sandkasten_cloud.provider import LABEL_ID, LABEL_OWNER, MachineOrder
from sandkasten_runtime.linux.programs import Programs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sandkasten.model.ids import SandboxId
    from sandkasten.model.sandbox.cell_spec import CellSpec
    from sandkasten_cloud.provider_options import ProviderOptions
    from sandkasten_runtime.backends.gate.entry_keys import EntryKeys

DIRECTORY: Final = "/opt/sandkasten"
"""A directory of the machine; only root can read it, except for the directory of the runner's
state.
"""
RUNNER: Final = f"{DIRECTORY}/sandkasten-runner"
_GATE: Final = f"{DIRECTORY}/sandkasten-gate"
PROGRAMS: Final = (RUNNER, _GATE)
PORT: Final = 8484
"""Where the gate listens in the machine."""
KEYS_VARIABLE: Final = "SANDKASTEN_GATE_KEYS"
"""A variable of the gate with its keys, for a provider that cannot bring private files."""


def read_programs(options: ProviderOptions) -> Mapping[str, bytes]:
    """Return the programs by their path in the machine. Blocks."""
    programs = Programs.found(None, None)
    runner, gate = programs.runner, programs.gate
    if options.programs_dir is not None:
        runner, gate = (options.programs_dir / program.name for program in (runner, gate))
    try:
        return {RUNNER: runner.read_bytes(), _GATE: gate.read_bytes()}
    except OSError as exc:
        raise BackendUnavailable(
            f"a program of Sandkasten cannot be read: {exc}",
            hint="install the package again, or correct programs_dir",
        ) from exc


def order(
    sandbox_id: SandboxId,
    spec: CellSpec,
    options: ProviderOptions,
    owner: str,
    keys: EntryKeys,
    programs: Mapping[str, bytes],
) -> MachineOrder:
    """Return the machine to ask for. `differences.check` has accepted the spec."""
    variables = base_environment(spec)
    if "PATH" not in spec.image.env and "PATH" not in spec.env:
        # That of the image, which we do not know.
        del variables["PATH"]
    # The gate would take it for its keys.
    variables.pop(KEYS_VARIABLE, None)
    limits = spec.limits
    return MachineOrder(
        sandbox_id=sandbox_id,
        image=spec.image.name,
        cpus=limits.cpus,
        memory_bytes=limits.memory_bytes,
        disk_bytes=limits.workspace_bytes,
        lifetime_s=options.lifetime_s,
        network=network_mode(spec.network) or "none",
        env=variables,
        files={
            **programs,
            f"{DIRECTORY}/keys/cert.der": keys.certificate,
            f"{DIRECTORY}/keys/key.der": keys.key,
            f"{DIRECTORY}/keys/token": keys.token,
        },
        programs=PROGRAMS,
        command=_command(spec),
        port=PORT,
        labels={LABEL_OWNER: owner, LABEL_ID: sandbox_id},
        region=options.region,
    )


def keys_variable(order: MachineOrder) -> str:
    """Return the value of `KEYS_VARIABLE`: all files of an order that are not programs."""
    secret = sorted(order.files.keys() - {*order.programs})
    return " ".join(
        f"{path.rpartition('/')[2]}={base64.b64encode(order.files[path]).decode()}"
        for path in secret
    )


def _command(spec: CellSpec) -> tuple[str, ...]:
    return (
        _GATE, "--machine", str(PORT), DIRECTORY,
        RUNNER,
        # Our own connections do not keep a sandbox from being idle.
        "--gate-port", str(PORT),
        "--state-dir", f"{DIRECTORY}/state",
        "--workspace", WORKSPACE,
        "--home", HOME,
        "--run-as", f"{RUNNER_ID}:{RUNNER_ID}",
        "--user", f"{USER_ID}:{USER_ID}",
        "--own", WORKSPACE,
        "--own", HOME,
        "--open-files", str(spec.limits.open_files),
    )  # fmt: skip
