"""The dagger backend: one-shots in containers of a Dagger Engine.

Dagger runs a command to its end and passes nothing in or out meanwhile, so this backend keeps no
sandbox: it implements `ports.RunsOnce`. Inside the container our runner plays a script, as the
user of every sandbox; deadlines, caps and the end of all processes are its work. What Dagger cannot
limit is reported with every run. A failure of the engine is always an error, never a result.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import secrets
import shutil
import sys
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from sandkasten.disk.cleanup import finish, in_thread
from sandkasten.disk.os_errors import translated
from sandkasten.disk.tree_removal import remove_tree_quietly
from sandkasten.errors import (
    BackendUnavailable,
    InvalidImage,
    RegistryUnavailable,
    SandboxLost,
    SandkastenError,
    UnsupportedByBackend,
)
from sandkasten.model.images.resolved_image import Image
from sandkasten.model.optional_extras import install_command
from sandkasten.model.sandbox.limits import Unenforced
from sandkasten.model.sandbox.oneshot_values import RunOutcome, check_run_only
from sandkasten.model.sandbox.readiness import Readiness, Requirement
from sandkasten_dagger.capabilities import dagger_capabilities
from sandkasten_dagger.dagger_options import (
    VERSION,
    DaggerOptions,
    network_class,
    network_refusal,
)
from sandkasten_dagger.dagger_session import (
    DaggerSession,
    check_listening,
    session_environment,
)
from sandkasten_dagger.image_archives import ImageArchives
from sandkasten_dagger.network_check import check_order, reached
from sandkasten_dagger.run_layout import run_fields
from sandkasten_runtime.linux.programs import Programs

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from sandkasten.model.backends.capabilities import Capabilities
    from sandkasten.model.ids import SandboxId
    from sandkasten.model.sandbox.cell_spec import CellSpec, HostMount
    from sandkasten.model.sandbox.network_policy import NetworkPolicy
    from sandkasten.model.sandbox.oneshot_values import RunOrder
    from sandkasten.ports import Cell, ImagePacker
    from sandkasten_dagger.dagger_options import NetworkClass

_NAME: Final = "dagger"
_PIECE_BYTES: Final = 1 << 20
_OLD_S: Final = 86_400.0
# For the start of a container and for its answers, on a busy engine.
_OVERHEAD_S: Final = 120.0
_OF_DAGGER: Final = "limit the engine itself: its container, Pod or machine"
UNENFORCED: Final = (
    Unenforced("cpu", "Dagger has no limit of processors for one run", _OF_DAGGER),
    Unenforced("memory", "Dagger has no limit of memory for one run", _OF_DAGGER),
    Unenforced("pids", "Dagger has no limit of processes for one run", _OF_DAGGER),
    Unenforced("workspace", "Dagger has no limit of disk space for one run", _OF_DAGGER),
)
_SHARED_NETWORK: Final = Unenforced(
    "network",
    "what the engine's machine reaches, a run with a network reaches; its connections are not "
    "counted or recorded",
    "put a firewall around the engine of class egress",
)


class DaggerBackend:
    """Implements Backend, KeepsImages, RefusesNetworks and RunsOnce."""

    def __init__(
        self,
        data_dir: Path,
        options: DaggerOptions,
        *,
        packer: ImagePacker | None = None,
        runner: Path | None = None,
    ) -> None:
        self._home = data_dir / _NAME
        self._options = options
        self._archives = ImageArchives(self._home / "images", packer)
        self._runner = Programs.found(runner, None).runner
        self._sessions: dict[NetworkClass, DaggerSession] = {}
        self._checked = 0
        """The start of the session of class `none` that was found to reach nothing."""

    @property
    def name(self) -> str:
        return _NAME

    @property
    def capabilities(self) -> Capabilities:
        return dagger_capabilities(self._options)

    # ---- the verbs

    async def probe(self) -> Readiness:
        lines = [self._library(), self._cli()]
        if not self._options.dagger_engines:
            lines.append(
                Requirement(
                    "engine",
                    False,
                    "no Dagger Engine is configured",
                    "set backends.dagger.engines.none (docs/guides/dagger.md)",
                )
            )
        if all(line.ok for line in lines):
            for network, address in self._options.dagger_engines.items():
                lines.append(await self._looked_at(network, address))
        if self._options.dagger_engines and "none" not in self._options.dagger_engines:
            lines.append(
                Requirement(
                    "engine none",
                    False,
                    "runs without a network are refused",
                    "set backends.dagger.engines.none",
                    required=False,
                )
            )
        lines += [
            Requirement(line.limit, False, line.reason, line.remedy, required=False)
            for line in UNENFORCED
        ]
        missing = next((line for line in lines if line.required and not line.ok), None)
        if missing is None:
            return Readiness(True, requirements=tuple(lines), unenforced=UNENFORCED)
        reason = f"{missing.name}: {missing.state}"
        return Readiness(False, reason, missing.remedy, tuple(lines), UNENFORCED)

    async def create(self, sandbox_id: SandboxId, spec: CellSpec) -> Cell:
        check_run_only(self.name, once=False, profile=spec.profile, workspace=None)
        raise AssertionError("check_run_only always raises here")

    async def attach(self, sandbox_id: SandboxId) -> Cell:
        raise SandboxLost(
            f"backend dagger keeps no sandbox {sandbox_id}", hint="run the code again"
        )

    async def owned(self) -> Sequence[SandboxId]:
        """Return nothing. Raise BackendUnavailable if an engine is unreachable, as others do."""
        for address in self._options.dagger_engines.values():
            await check_listening(address)
        return ()

    async def network_refusal(self, policy: NetworkPolicy) -> UnsupportedByBackend | None:
        """Implement `ports.RefusesNetworks`."""
        return network_refusal(policy, self._options)

    async def reach(self, spec: CellSpec) -> None:
        """Implement `ports.RunsOnce`."""
        network = network_class(spec.network)
        session = self._session(network)
        await session.check()
        await self._check_class(network, session)

    async def run(self, order: RunOrder) -> RunOutcome:
        """Implement `ports.RunsOnce`."""
        refusal = network_refusal(order.spec.network, self._options)
        if refusal is not None:
            raise refusal
        _check_mounts(order.spec)
        network = network_class(order.spec.network)
        session = self._session(network)
        source = await self._source(order.spec.image)
        if not order.after:
            await self._check_class(network, session)
            # What takes long is over before the time of the code begins.
            fields = self._fields(order, source)
            await self._answered(session, "bring", fields, self._options.timeout_s)
        state, answers = await self._played(session, order, source)
        unenforced = UNENFORCED if network == "none" else (*UNENFORCED, _SHARED_NETWORK)
        return RunOutcome(answers, state, unenforced)

    async def _check_class(self, network: NetworkClass, session: DaggerSession) -> None:
        """Raise BackendUnavailable if an engine for runs without a network has one."""
        await session.start()
        if network != "none" or self._checked == session.started:
            return
        started = session.started
        _, answers = await self._played(session, check_order(), {"reference": ""})
        routes = reached(answers)
        if routes:
            raise session.failure(
                f"the containers of engines.none have a route to {routes[0]}",
                "configure the engine without a network (docs/guides/dagger.md), or name it "
                "backends.dagger.engines.egress",
            )
        self._checked = started

    async def _played(
        self, session: DaggerSession, order: RunOrder, source: dict[str, str]
    ) -> tuple[str, list[bytes]]:
        """Return the state of the run, and the runner's answers."""
        async with self._folder() as folder:
            script = folder / "script"
            await asyncio.to_thread(_write, script, order.script)
            answer = await self._answered(
                session,
                "run",
                {**self._fields(order, source), "after": order.after, "folder": str(folder)},
                order.seconds + min(self._options.timeout_s, _OVERHEAD_S),
            )
            _check_exit(answer, session)
            answers = await asyncio.to_thread(
                _read, folder / "answers", order.max_answer_bytes, session
            )
        return str(answer.get("state") or ""), answers

    # ---- images

    async def find_image(self, names: Sequence[str], *, fetch: bool = False) -> Image | None:
        """Resolve the name in its registry. An engine does not report what it has already."""
        if not fetch or not names:
            return None
        name = names[-1]
        fields = {"reference": name}
        session = self._session("none" if "none" in self._options.dagger_engines else "egress")
        answer = await session.ask("resolve", fields, self._options.timeout_s)
        if "error" in answer:
            await session.check()
            raise RegistryUnavailable(
                f"the Dagger Engine could not get image {name}: {answer.get('message')}",
                hint="check the name, and that the engine reaches the registry; or bring the image "
                "into the store (sandkasten image pull or import)",
                image=name,
            )
        reference = str(answer.get("reference") or name)
        env = {str(key): str(value) for key, value in dict(answer.get("env") or {}).items()}
        return Image(name, "engine", id=reference, env=env)

    async def bring_image(self, image: Image) -> None:
        """Write the archive of the image. Each engine imports it with its first run."""
        await asyncio.to_thread(self._prepare)
        await self._archives.path(image)

    async def bring_contents(self, mounts: Sequence[HostMount]) -> None:
        """Do nothing: a session uploads a directory with the first run that mounts it."""

    async def discard(self, sandbox_id: SandboxId) -> None:
        """Do nothing: it keeps no sandbox."""

    async def ping(self) -> None:
        """Do nothing: each run asks its own engine (`reach`)."""

    async def aclose(self) -> None:
        await asyncio.gather(*(session.aclose() for session in self._sessions.values()))

    # ---- parts

    def _session(self, network: NetworkClass) -> DaggerSession:
        session = self._sessions.get(network)
        if session is not None:
            return session
        address = self._options.dagger_engines.get(network)
        for line in (self._library(), self._cli()):
            if not line.ok:
                raise BackendUnavailable(
                    f"backend dagger is not ready: {line.name}: {line.state}",
                    hint=line.remedy,
                    backend=_NAME,
                )
        if address is None:
            raise BackendUnavailable(
                f"backend dagger has no engine of class {network}",
                hint=f"set backends.dagger.engines.{network}",
                backend=_NAME,
            )
        self._prepare()
        cli = shutil.which(self._options.cli) or self._options.cli
        env = session_environment(os.environ, cli, address)
        place = self._home / "session"
        python = self._options.python or sys.executable
        session = DaggerSession(address, python, env, place, self._options.timeout_s)
        self._sessions[network] = session
        return session

    def _prepare(self) -> None:
        with translated("make the directories of backend dagger"):
            for name in ("images", "runs", "session"):
                (self._home / name).mkdir(mode=0o700, parents=True, exist_ok=True)

    @asynccontextmanager
    async def _folder(self) -> AsyncIterator[Path]:
        """Yield a directory for one order, private and removed afterwards."""
        folder = await asyncio.to_thread(_new_folder, self._home / "runs")
        try:
            yield folder
        finally:
            await finish(in_thread(remove_tree_quietly, folder))

    async def _source(self, image: Image) -> dict[str, str]:
        if image.kind == "engine":
            return {"reference": image.id or image.name}
        return {"archive": str(await self._archives.path(image))}

    async def _answered(
        self, session: DaggerSession, op: str, fields: dict[str, Any], seconds: float
    ) -> dict[str, Any]:
        answer = await session.ask(op, fields, seconds)
        if "error" not in answer:
            return answer
        # An engine that is gone, or a request that it refused?
        await session.check()
        message = " ".join(str(answer.get("message")).split())[:500]
        raise session.failure(
            f"the Dagger Engine refused a run: {message}",
            "see the log of the engine; check the image",
        )

    def _fields(self, order: RunOrder, source: dict[str, str]) -> dict[str, Any]:
        fields = run_fields(order, secrets.token_hex(16))
        return {**source, "runner": str(self._runner), **fields}

    async def _looked_at(self, network: NetworkClass, address: str) -> Requirement:
        name = f"engine {network}"
        try:
            session = self._session(network)
            await self._check_class(network, session)
        except SandkastenError as exc:
            return Requirement(name, False, exc.operator_message, exc.hint)
        return Requirement(name, True, f"{session.version} at {address}")

    def _library(self) -> Requirement:
        if self._options.python:
            # Its environment is looked at by starting a session.
            program = shutil.which(self._options.python)
            if program is None:
                state = f"the program {self._options.python} is missing"
                return Requirement("library", False, state, "correct backends.dagger.python")
            return Requirement("library", True, f"of {program}")
        if importlib.util.find_spec("dagger") is None:
            return Requirement(
                "library", False, "dagger-io is not installed", install_command("dagger")
            )
        return Requirement("library", True, "dagger-io is installed")

    def _cli(self) -> Requirement:
        program = shutil.which(self._options.cli)
        if program is None:
            return Requirement(
                "cli",
                False,
                f"the program {self._options.cli} is missing",
                f"install the Dagger CLI {VERSION}, or set backends.dagger.cli to its path",
            )
        return Requirement("cli", True, program)


def _new_folder(runs: Path) -> Path:
    with translated("make the directory of a run"):
        for old in runs.iterdir():
            # What a process that was killed left: no run is this old.
            if time.time() - old.stat().st_mtime > _OLD_S:
                remove_tree_quietly(old)
        folder = runs / secrets.token_hex(8)
        folder.mkdir(mode=0o700)
    return folder


def _check_mounts(spec: CellSpec) -> None:
    """Raise UnsupportedByBackend for a directory of the host: an engine gets copies only."""
    if any(not mount.content for mount in spec.mounts):
        raise UnsupportedByBackend(
            "backend dagger cannot mount a directory of this machine",
            hint="upload the files with the run, or use backend local or docker",
        )
    if spec.gpus is not None:
        raise UnsupportedByBackend(
            "backend dagger cannot give a run GPUs", hint="request backend docker", field="gpus"
        )


def _check_exit(answer: dict[str, Any], session: DaggerSession) -> None:
    """Raise the error for a runner that did not play its script to the end."""
    code, output = answer.get("exit_code"), " ".join(str(answer.get("stderr") or "").split())
    if code == 0:
        return
    if "not for root alone" in output:
        raise InvalidImage(
            f"the image cannot protect the runner: {output[-300:]}",
            hint="its directories / and /run must belong to root; use another image",
        )
    if code == 1 and "before it answered" not in output:
        raise session.failure(
            f"the runner could not be started in the container: {output[-300:]}",
            "check the image and the engine's capabilities",
        )
    raise SandboxLost(
        f"the run was killed from outside (status {code}): {output[-300:]}",
        hint="the engine's machine may be out of memory; run it again, or limit the code",
    )


def _write(path: Path, parts: Sequence[bytes | memoryview]) -> None:
    with translated("write the files of a run"):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            for part in parts:
                file.write(part)


def _read(path: Path, most: int, session: DaggerSession) -> list[bytes]:
    """Return the answers. Raise BackendUnavailable if the engine sent none, or too many."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as exc:
        raise session.failure("the Dagger Engine sent no answers of a run", "run it again") from exc
    with os.fdopen(descriptor, "rb") as file:
        if os.fstat(descriptor).st_size > most:
            raise session.failure(
                "the Dagger Engine sent too many answers of a run", "run it again"
            )
        return list(iter(lambda: file.read(_PIECE_BYTES), b""))
