"""Named Docker Engines: how a request names one, and which ones have a label. Pure.

`docker` is the engine of `backends.docker.*`, and `docker/west` the one named `west` of
`backends.docker.engines`. `docker/zone=eu` is not a backend: it stands for one of the named engines
that have this label.
"""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Final

from sandkasten.errors import BackendUnavailable, InvalidRequest
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model import lazy_pattern
from sandkasten.model.spelling import did_you_mean, shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

DOCKER: Final = "docker"
ENGINE_PREFIX: Final = f"{DOCKER}/"
# Part of the name of a directory, and of lines of a log.
ENGINE_NAME: Final = lazy_pattern.compile(r"[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?\Z")
LABEL_KEY: Final = lazy_pattern.compile(r"[a-z0-9](?:[a-z0-9._-]{0,61}[a-z0-9])?\Z")
LABEL_VALUE: Final = lazy_pattern.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?\Z")


@dataclass(frozen=True, slots=True)
class EngineRules:
    """What the operator says about a named engine, besides how it is reached."""

    labels: Mapping[str, str] = field(default_factory=dict)
    max_sandboxes: int | None = None
    """Most sandboxes at once, including those of the warm pool; None: any number."""


def family(backend: str) -> str:
    """Return `docker` for a named engine, and every other name as it is."""
    return DOCKER if backend.startswith(ENGINE_PREFIX) else backend


def settings_section(backend: str) -> str:
    """Return where the settings of a Docker Engine are, as the operator writes it."""
    if not backend.startswith(ENGINE_PREFIX):
        return "backends.docker"
    return f"backends.docker.engines.{backend.removeprefix(ENGINE_PREFIX)}"


def engine_labels(backend: str) -> dict[str, str] | None:
    """Return the labels of `docker/zone=eu,disk=ssd`; None if the request names a backend. Raise
    InvalidRequest.
    """
    if not backend.startswith(ENGINE_PREFIX) or "=" not in backend:
        return None
    labels: dict[str, str] = {}
    for pair in backend.removeprefix(ENGINE_PREFIX).split(","):
        key, _, value = pair.partition("=")
        if not LABEL_KEY.match(key) or not LABEL_VALUE.match(value) or key in labels:
            raise InvalidRequest(
                f"backend {shown(backend)} is not a valid choice of Docker Engines by label",
                hint="write docker/KEY=VALUE, or docker/KEY=VALUE,KEY=VALUE with different keys",
                field="backend",
            )
        labels[key] = value
    return labels


def has_labels(rules: EngineRules, labels: Mapping[str, str]) -> bool:
    return all(rules.labels.get(key) == value for key, value in labels.items())


def labelled(engines: Mapping[str, EngineRules], labels: Mapping[str, str]) -> list[str]:
    """Return the engines with these labels, in the order of the settings. Raise InvalidRequest."""
    found = [name for name, rules in engines.items() if has_labels(rules, labels)]
    if found:
        return found
    wanted = written(labels)
    known = {f"{key}={value}" for one in engines.values() for key, value in one.labels.items()}
    raise InvalidRequest(
        f"no Docker Engine has the label{'s' if len(labels) > 1 else ''} {wanted}",
        hint=did_you_mean(wanted, known)
        if known
        else "add the label to a Docker Engine in backends.docker.engines",
        field="backend",
    )


def written(labels: Mapping[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in labels.items())


def unknown_engine(backend: str, engines: Mapping[str, EngineRules]) -> InvalidRequest:
    """Return the error for a request that names an engine that is not in the settings."""
    name = backend.removeprefix(ENGINE_PREFIX)
    if any(name in one.labels for one in engines.values()):
        hint = f"write docker/{name}=VALUE to choose by label"
    elif engines:
        hint = did_you_mean(backend, (DOCKER, *engines))
    else:
        hint = "add it to backends.docker.engines, or request backend docker"
    message = f"Docker Engine {shown(name)} is not in the settings"
    return InvalidRequest(message, hint=hint, field="backend")


def not_configured(backend: str, known: Iterable[str]) -> BackendUnavailable:
    """Return the error for what belongs to a backend that the settings do not have (any more)."""
    if backend.startswith(ENGINE_PREFIX):
        name = backend.removeprefix(ENGINE_PREFIX)
        return BackendUnavailable(
            f"Docker Engine {name} is not in the settings any more",
            hint=f"add {name} to backends.docker.engines again: what it has is kept there",
            backend=backend,
        )
    return BackendUnavailable(
        f"backend {backend} is not installed here",
        hint="if a plugin brings it, install it again: what it has is kept there; installed "
        f"are: {', '.join(sorted(known))}",
        backend=backend,
    )
