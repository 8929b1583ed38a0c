"""The settings `policy.max.*`: the most that any request may ask for, of each limit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sandkasten.errors import InvalidConfiguration, InvalidRequest
from sandkasten.model.sandbox.limits import Limits
from sandkasten.model.sandbox.policy import CEILING_NAMES, parse_limits

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sandkasten.daemon.settings.setting_parsers import Value

PREFIX: Final = "policy.max."
SETTINGS: Final = tuple(PREFIX + name for name in CEILING_NAMES)


def parse_ceiling(values: Mapping[str, Value]) -> dict[str, int | float]:
    """By names of limits; InvalidConfiguration for a figure that no limit can have."""
    found: dict[str, int | float] = {}
    for setting in SETTINGS:
        value = values[setting]
        if value is None or isinstance(value, bool) or not isinstance(value, int | float):
            continue
        name = setting.removeprefix(PREFIX)
        try:
            parse_limits({name: value}, Limits())
        except InvalidRequest as exc:
            message = exc.message.replace(name, setting, 1)
            raise InvalidConfiguration(message, hint=exc.hint, setting=setting) from exc
        found[name] = value
    return found


def within(
    ceiling: Mapping[str, int | float], name: str, default: int | float, said: bool
) -> int | float:
    """The default of a limit: lowered to the ceiling, unless it was said to be more than that."""
    most = ceiling.get(name, default)
    if default <= most:
        return default
    if said:
        raise InvalidConfiguration(
            f"defaults.{name} ({default:g}) is more than {PREFIX}{name} ({most:g})",
            hint="lower the one or raise the other",
            setting=f"defaults.{name}",
        )
    return most
