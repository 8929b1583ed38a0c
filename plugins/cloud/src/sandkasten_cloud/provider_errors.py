"""Named errors for the answers of providers. Pure.

Clients and logs show the text of a provider or a machine, so it is repeated only through
`one_line`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sandkasten.errors import BackendUnavailable, Busy, SandboxLost
from sandkasten.model.spelling import one_line

if TYPE_CHECKING:
    from sandkasten.model.ids import SandboxId


def unauthorized(backend: str, title: str, variable: str, reason: str = "") -> BackendUnavailable:
    """Return the error for credentials that the provider did not accept, or that expired."""
    return BackendUnavailable(
        f"{title} does not accept the credentials{_because(reason)}",
        hint=f"set {variable} to valid credentials, or correct the file in backends.{backend}",
        backend=backend,
    )


def rate_limited(
    backend: str, title: str, retry_after_s: float | None = None, reason: str = ""
) -> Busy:
    """Return the error for too many requests, or machines, at the provider."""
    when = "try again later" if retry_after_s is None else f"try again in {retry_after_s:g} s"
    return Busy(
        f"{title} limits the rate of requests or the number of machines{_because(reason)}",
        hint=f"{when}, destroy sandboxes, or ask the provider for a higher limit",
        backend=backend,
        retry_after_s=retry_after_s,
    )


def outage(backend: str, title: str, reason: str = "") -> BackendUnavailable:
    """Return the error for an answer that failed, was cut or did not come."""
    return BackendUnavailable(
        f"{title} does not answer as it should{_because(reason)}",
        hint="try again; if it persists, run sandkasten doctor and see the provider's status page",
        backend=backend,
    )


def lost(sandbox_id: SandboxId | str, why: str) -> SandboxLost:
    return SandboxLost(
        f"sandbox {one_line(sandbox_id)} is gone: {one_line(why)}", hint="create a new one"
    )


def _because(reason: str) -> str:
    text = one_line(reason)
    return f": {text}" if text else ""
