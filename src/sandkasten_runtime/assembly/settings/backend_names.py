"""The names of backends, in settings that name one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sandkasten.errors import InvalidConfiguration, InvalidRequest
from sandkasten.model.backends.named_backends import (
    NAME,
    kind_of,
    labelled,
    labels_of,
    named_setting,
)
from sandkasten.model.optional_extras import SECTION_EXTRAS, install_command
from sandkasten.model.spelling import did_you_mean
from sandkasten.settings.setting_parsers import choice, invalid
from sandkasten_runtime.backends.backend_catalog import CAPABILITIES, capabilities_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sandkasten.model.backends.named_backends import NamedBackendRules

BACKENDS: tuple[str, ...] = tuple(CAPABILITIES)


def backend_name(name: str, value: object) -> str:
    """Accept also `KIND/NAME`; `check_backend` compares it with the named backends."""
    text = value if isinstance(value, str) else ""
    kind, slash, own_name = text.partition("/")
    if slash and kind in BACKENDS and CAPABILITIES[kind].named_by:
        if NAME.match(own_name):
            return text
        setting = named_setting(kind, CAPABILITIES[kind])
        raise invalid(name, f"{kind}/NAME", value, f"write a name of {setting}")
    extra = SECTION_EXTRAS.get(f"backends.{kind}")
    if extra is not None and kind not in BACKENDS:
        raise InvalidConfiguration(
            f"{name} is {value}, and the extra {extra}, which provides it, is not installed",
            hint=install_command(extra),
            setting=name,
        )
    return choice(*BACKENDS)(name, value)


def backend_or_labels(name: str, value: str) -> str:
    """Accept also `KIND/LABEL=VALUE`."""
    kind = capabilities_of(value)
    try:
        if kind.named_by and labels_of(value, kind) is not None:
            return value
    except InvalidRequest as exc:
        raise InvalidConfiguration(f"{name}: {exc.message}", hint=exc.hint, setting=name) from exc
    return backend_name(name, value)


def check_backend(
    backend: str, named: Mapping[str, NamedBackendRules], setting: str = "backend"
) -> None:
    """Raise InvalidConfiguration for a named backend, or a label, that the settings do not have."""
    kind = capabilities_of(backend)
    try:
        labels = labels_of(backend, kind)
        if labels is not None:
            labelled(backend, kind, named, labels)
            return
    except InvalidRequest as exc:
        message = f"{setting}: {exc.message}"
        raise InvalidConfiguration(message, hint=exc.hint, setting=setting) from exc
    if backend not in (kind_of(backend), *named):
        raise InvalidConfiguration(
            f"{setting} is {backend}, which {named_setting(backend, kind)} does not have",
            hint=did_you_mean(backend, (*BACKENDS, *named)),
            setting=setting,
        )
