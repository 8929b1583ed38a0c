"""The names of backends, in settings that name one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sandkasten.backends.backend_catalog import CAPABILITIES
from sandkasten.errors import InvalidConfiguration, InvalidRequest
from sandkasten.model.backends.docker_engines import (
    ENGINE_NAME,
    ENGINE_PREFIX,
    engine_labels,
    labelled,
)
from sandkasten.model.optional_extras import SECTION_EXTRAS, install_command
from sandkasten.model.spelling import did_you_mean
from sandkasten.settings.setting_parsers import choice, invalid

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sandkasten.model.backends.docker_engines import EngineRules

BACKENDS: tuple[str, ...] = tuple(CAPABILITIES)


def backend_name(name: str, value: object) -> str:
    """Accept also `docker/NAME`; `check_backend` compares it with the named engines."""
    if isinstance(value, str) and value.startswith(ENGINE_PREFIX):
        if ENGINE_NAME.match(value.removeprefix(ENGINE_PREFIX)):
            return value
        raise invalid(name, "docker/NAME", value, "write a name of backends.docker.engines")
    extra = SECTION_EXTRAS.get(f"backends.{value}")
    if extra is not None and value not in BACKENDS:
        raise InvalidConfiguration(
            f"{name} is {value}, and the extra {extra}, which provides it, is not installed",
            hint=install_command(extra),
            setting=name,
        )
    return choice(*BACKENDS)(name, value)


def check_backend(
    backend: str, engines: Mapping[str, EngineRules], setting: str = "backend"
) -> None:
    """Raise InvalidConfiguration for a named engine, or a label, that the settings do not have."""
    try:
        labels = engine_labels(backend)
        if labels is not None:
            labelled(engines, labels)
            return
    except InvalidRequest as exc:
        message = f"{setting}: {exc.message}"
        raise InvalidConfiguration(message, hint=exc.hint, setting=setting) from exc
    if backend.startswith(ENGINE_PREFIX) and backend not in engines:
        raise InvalidConfiguration(
            f"{setting} is {backend}, which backends.docker.engines does not have",
            hint=did_you_mean(backend, (*BACKENDS, *engines)),
            setting=setting,
        )
