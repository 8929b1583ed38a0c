"""`doctor`: requirements of sandboxes on this machine, and a remedy for each missing one."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Final

from sandkasten.client.import_clash import find_clash
from sandkasten.errors import BackendUnavailable
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.backends.backend_features import BackendReport, supported, unsupported
from sandkasten.model.sandbox.readiness import Readiness, Requirement, Tier, unusable_plugin
from sandkasten_server.cli.command_plugins import COMMANDS_GROUP, command_problems
from sandkasten_server.cli.exit_status import EXIT_NOT_READY
from sandkasten_server.cli.output import counted, painted, paragraph, put, put_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from sandkasten.client.server.daemon_or_embedded import ServerAddress
    from sandkasten_server.cli.state import State

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
        return self.machine.ready and all(tier.ready for tier in self.tiers if tier.default)


async def examine(state: State, *, measure: bool, everything: bool) -> int:
    """Return 0 if sandboxes can be created on this machine, else 1.

    `everything` shows each backend with what it can do; JSON always has all of it.
    """
    examined = await _findings(state, measure=measure)
    groups = plugin_groups(engine_here=not _is_remote(state))
    findings = await asyncio.to_thread(_with_warnings, examined, groups)
    if state.json:
        put_json(
            {
                **asdict(findings.machine),
                "tiers": [asdict(tier) for tier in findings.tiers],
                "backends": [asdict(backend) for backend in findings.backends],
            }
        )
    else:
        _show(findings, everything=everything)
    return 0 if findings.good else EXIT_NOT_READY


def plugin_groups(*, engine_here: bool) -> Mapping[str, Callable[[], Iterable[str]]]:
    """Return what finds the problems of each group of plugins that this process uses. A daemon on
    another machine reports its own.
    """
    if not engine_here:
        return {COMMANDS_GROUP: command_problems}
    from sandkasten_server.daemon import plugin_problems

    return {**plugin_problems.GROUPS, COMMANDS_GROUP: command_problems}


def _is_remote(state: State) -> bool:
    """Return whether a daemon is asked. One that happens to serve the data directory is not asked
    about its own machine.
    """
    return _place(state).url is not None and not state.embedded


def _place(state: State) -> ServerAddress:
    from sandkasten.client.server.daemon_or_embedded import place_of

    return place_of(state.data_dir, state.backend, state.url, state.api_key)


async def _findings(state: State, *, measure: bool) -> Findings:
    from sandkasten.client.server.server_pool import connect

    try:
        transport = await connect(_place(state) if _is_remote(state) else state.here)
        machine = await transport.probe(state.backend)
        tiers = tuple(await transport.tiers(measure=measure))
        return Findings(machine, tiers, tuple(await transport.backends()))
    except BackendUnavailable as exc:
        # The engine cannot be opened: that is the finding.
        return Findings(Readiness(ready=False, reason=exc.message, remedy=exc.hint))


def _with_warnings(
    findings: Findings, groups: Mapping[str, Callable[[], Iterable[str]]]
) -> Findings:
    """Add warnings about this process: an import name that another project's package has too, and
    plugins that cannot be used.
    """
    problems = [problem for find in dict.fromkeys(groups.values()) for problem in find()]
    warnings = [unusable_plugin(problem) for problem in problems]
    clash = find_clash()
    if clash is not None:
        warnings.append(
            Requirement("import name", False, clash.message, clash.remedy, required=False)
        )
    machine = replace(findings.machine, requirements=(*warnings, *findings.machine.requirements))
    return replace(findings, machine=machine)


def _show(findings: Findings, *, everything: bool) -> None:
    machine = findings.machine
    for line in machine.requirements:
        mark = "ok" if line.ok else ("MISS" if line.required else "warn")
        _line(mark, f"{line.name}: {line.state}", "" if line.ok else line.remedy)
    for limit in machine.unenforced:
        _line("warn", f"limit {limit.limit} is not enforced: {limit.reason}", limit.remedy)
    if everything:
        _show_backends(findings)
    else:
        for tier in findings.tiers:
            if tier.default:
                _show_tier(tier)
                _show_warnings(tier, set(machine.requirements))
        _show_others(findings)
    if findings.good:
        put("ready: sandboxes work on this machine")
        return
    reason = machine.reason or next((tier.reason for tier in findings.tiers if tier.default), "")
    put(f"not ready: {paragraph(reason or 'something required is missing', _INDENT)}")
    _remedy(machine.remedy)


def _show_others(findings: Findings) -> None:
    """Show every backend but the default in one line."""
    ready = {tier.backend: tier.ready for tier in findings.tiers if tier.name == tier.backend}
    ready |= {backend.name: backend.ready for backend in findings.backends}
    default = {tier.backend for tier in findings.tiers if tier.default}
    default |= {backend.name for backend in findings.backends if backend.default}
    parts = [
        f"{', '.join(names)} {state}"
        for state, names in (
            ("ready", [name for name in ready if ready[name] and name not in default]),
            ("not ready", [name for name in ready if not ready[name] and name not in default]),
        )
        if names
    ]
    if parts:
        _line("--", f"other backends: {'; '.join(parts)} (sandkasten doctor --all)")


def _show_backends(findings: Findings) -> None:
    """Show every backend: whether it is ready, its warnings, and what it can and cannot do."""
    shown = set(findings.machine.requirements)
    reports = {backend.name: backend for backend in findings.backends}
    for tier in findings.tiers:
        _show_tier(tier)
        _show_warnings(tier, shown)
        if tier.name == tier.backend and tier.backend in reports:
            _show_features(reports.pop(tier.backend))
    for backend in reports.values():
        name = backend.name + (" (default)" if backend.default else "")
        if backend.ready:
            _line("ok", f"backend {name}: ready")
        else:
            reason = backend.reason or "not examined"
            _line("--", f"backend {name}: not ready: {reason}", backend.remedy)
        _show_features(backend)


def _show_tier(tier: Tier) -> None:
    name = tier.name + (" (default)" if tier.default else "")
    if tier.ready:
        took = "" if tier.create_ms is None else f", create {tier.create_ms:.1f} ms"
        image = f", image {tier.image}" if tier.image else ""
        _line("ok", f"backend {name}: ready{image}{took}")
        return
    mark = "MISS" if tier.default else "--"
    _line(mark, f"backend {name}: not ready: {tier.reason}", tier.remedy)


def _show_warnings(tier: Tier, shown: set[Requirement]) -> None:
    """Show the warnings of a tier that are not in `shown` yet, and add them to it."""
    for warning in tier.warnings:
        if warning not in shown:
            shown.add(warning)
            _line("warn", f"backend {tier.name}: {warning.name}: {warning.state}", warning.remedy)


def _show_features(backend: BackendReport) -> None:
    can = supported(backend.features, backend.unenforced)
    cannot = unsupported(backend.features, backend.unenforced)
    if not can:
        return
    labels = "".join(f"; {key}={value}" for key, value in backend.labels.items())
    text = f"isolation {backend.isolation}{labels}; {'; '.join(can)}"
    if backend.max_sandboxes is not None:
        most = counted(backend.max_sandboxes, "sandbox", "sandboxes")
        text += f"; {backend.sandboxes or 0} of {most}"
    put(f"{_INDENT}has: {paragraph(text, _INDENT)}")
    if cannot:
        put(f"{_INDENT}lacks: {paragraph('; '.join(cannot), _INDENT)}")
    if backend.ready and not backend.default:
        for limit in backend.unenforced:
            if limit.limit in backend.features.limits:
                text = f"backend {backend.name}: limit {limit.limit} is not enforced"
                _line("warn", f"{text}: {limit.reason}", limit.remedy)


def _line(mark: str, text: str, remedy: str = "") -> None:
    put(f"{painted(f'{mark:4}', _MEANING.get(mark, ''), sys.stdout)}  {paragraph(text, _INDENT)}")
    _remedy(remedy)


def _remedy(text: str) -> None:
    if text:
        put(f"{_INDENT}remedy: {paragraph(text, _INDENT)}")
