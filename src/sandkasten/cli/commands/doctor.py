"""`doctor`: requirements of sandboxes on this machine, and a remedy for each missing one."""

from __future__ import annotations

import sys
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Final

from sandkasten.cli.exit_status import EXIT_NOT_READY
from sandkasten.cli.output import counted, painted, paragraph, put, put_json
from sandkasten.client.import_clash import find_clash
from sandkasten.errors import BackendUnavailable
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.backends.backend_features import BackendReport, supported, unsupported
from sandkasten.model.sandbox.readiness import Readiness, Requirement, Tier

if TYPE_CHECKING:
    from sandkasten.cli.state import State

_INDENT: Final = " " * 6
_MEANING: Final = {"ok": "ok", "MISS": "missing", "warn": "warning"}


@dataclass(frozen=True, slots=True)
class Findings:
    machine: Readiness
    tiers: tuple[Tier, ...] = ()
    backends: tuple[BackendReport, ...] = ()

    @property
    def good(self) -> bool:
        """Whether a request without options gets a sandbox; other tiers may be missing."""
        return self.machine.ready and all(one.ready for one in self.tiers if one.default)


async def examine(state: State, *, measure: bool) -> int:
    """Return 0 if sandboxes can be created on this machine, else 1."""
    found = _with_clash(await _findings(state, measure=measure))
    if state.json:
        put_json(
            {
                **asdict(found.machine),
                "tiers": [asdict(one) for one in found.tiers],
                "backends": [asdict(one) for one in found.backends],
            }
        )
    else:
        _show(found)
    return 0 if found.good else EXIT_NOT_READY


async def _findings(state: State, *, measure: bool) -> Findings:
    from sandkasten.client.server.daemon_or_embedded import place_of
    from sandkasten.client.server.server_pool import connect

    named = place_of(state.data_dir, state.backend, state.url, state.api_key)
    try:
        # A daemon that happens to serve the data directory is not asked about its own machine.
        remote = named.url is not None and not state.embedded
        transport = await connect(named if remote else state.here)
        machine = await transport.probe(state.backend)
        tiers = tuple(await transport.tiers(measure=measure))
        return Findings(machine, tiers, tuple(await transport.backends()))
    except BackendUnavailable as exc:
        # The engine cannot be opened: that is the finding.
        return Findings(Readiness(ready=False, reason=exc.message, remedy=exc.hint))


def _with_clash(found: Findings) -> Findings:
    """Add a warning if another project's package has our import name."""
    clash = find_clash()
    if clash is None:
        return found
    told = Requirement("import name", False, clash.message, clash.remedy, required=False)
    machine = replace(found.machine, requirements=(told, *found.machine.requirements))
    return replace(found, machine=machine)


def _show(found: Findings) -> None:
    machine = found.machine
    for one in machine.requirements:
        mark = "ok" if one.ok else ("MISS" if one.required else "warn")
        _line(mark, f"{one.name}: {one.state}", "" if one.ok else one.remedy)
    for limit in machine.unenforced:
        _line("warn", f"limit {limit.limit} is not enforced: {limit.reason}", limit.remedy)
    shown = set(machine.requirements)
    for tier in found.tiers:
        _show_tier(tier)
        for one in tier.warnings:
            if one not in shown:
                shown.add(one)
                _line("warn", f"tier {tier.name}: {one.name}: {one.state}", one.remedy)
    explained = {tier.name for tier in found.tiers if not tier.ready}
    for backend in found.backends:
        _show_backend(backend)
        if not backend.ready and backend.name not in explained:
            put(f"{_INDENT}not ready: {paragraph(backend.reason or 'not examined', _INDENT)}")
            _remedy(backend.remedy)
        elif backend.ready and not backend.default:
            _show_unenforced(backend)
    if found.good:
        put("ready: sandboxes work on this machine")
        return
    reason = machine.reason or next((one.reason for one in found.tiers if one.default), "")
    put(f"not ready: {paragraph(reason or 'something required is missing', _INDENT)}")
    _remedy(machine.remedy)


def _show_tier(tier: Tier) -> None:
    name = tier.name + (" (default)" if tier.default else "")
    if tier.ready:
        took = "" if tier.create_ms is None else f", create {tier.create_ms:.1f} ms"
        image = f", image {tier.image}" if tier.image else ""
        _line("ok", f"tier {name}: ready{image}{took}")
        return
    _line("MISS" if tier.default else "--", f"tier {name}: not ready: {tier.reason}", tier.remedy)


def _show_backend(backend: BackendReport) -> None:
    name = backend.name + (" (default)" if backend.default else "")
    can, cannot = supported(backend.features), unsupported(backend.features)
    if not can:
        return
    labels = "".join(f"; {key}={value}" for key, value in backend.labels.items())
    text = f"backend {name}: isolation {backend.isolation}{labels}; {'; '.join(can)}"
    if backend.max_sandboxes is not None:
        most = counted(backend.max_sandboxes, "sandbox", "sandboxes")
        text += f"; {backend.sandboxes or 0} of {most}"
    _line("ok" if backend.ready else "--", text + (f"; not: {'; '.join(cannot)}" if cannot else ""))


def _show_unenforced(backend: BackendReport) -> None:
    """Show the limits that this backend can enforce, but not on this machine."""
    for one in backend.unenforced:
        if one.limit in backend.features.limits:
            text = f"backend {backend.name}: limit {one.limit} is not enforced: {one.reason}"
            _line("warn", text, one.remedy)


def _line(mark: str, text: str, remedy: str = "") -> None:
    put(f"{painted(f'{mark:4}', _MEANING.get(mark, ''), sys.stdout)}  {paragraph(text, _INDENT)}")
    _remedy(remedy)


def _remedy(text: str) -> None:
    if text:
        put(f"{_INDENT}remedy: {paragraph(text, _INDENT)}")
