"""Parsers of values that only the daemon's own settings have."""

from __future__ import annotations

from typing import Literal

from sandkasten.errors import InvalidConfiguration, InvalidImage, InvalidRequest
from sandkasten.model.files.sandbox_paths import sandbox_path
from sandkasten.model.sandbox.gpus import ALL, MAX_GPUS
from sandkasten.model.sandbox.host_mounts import mount_text, parse_mounts
from sandkasten.settings.setting_parsers import (
    boolean,
    image,
    invalid,
    number,
    pair_list,
    string_list,
)
from sandkasten_runtime.images.image_names import all_aliases


def gpu_count(name: str, value: object) -> int:
    if value == "all":
        return ALL
    if value == "none":
        return 0
    expected = f"an integer from 0 to {MAX_GPUS}, or all"
    hint = "write a number such as 2, all or none"
    try:
        parsed = number(name, value)
    except InvalidConfiguration as exc:
        raise invalid(name, expected, value, hint) from exc
    if not 0 <= parsed <= MAX_GPUS or parsed != int(parsed):
        raise invalid(name, expected, value, hint)
    return int(parsed)


def network_default(name: str, value: object) -> Literal["none", "full"]:
    """Accept none and full, and also false and true, as Station writes them."""
    if value in ("none", "full"):
        return "full" if value == "full" else "none"
    try:
        return "full" if boolean(name, value) else "none"
    except InvalidConfiguration as exc:
        hint = "write none, or full for a network by default"
        raise invalid(name, "none or full (also false or true)", value, hint) from exc


def image_list(name: str, value: object) -> tuple[str, ...]:
    return tuple(image(name, item) for item in string_list(name, value))


def sandbox_paths(name: str, value: object) -> tuple[str, ...]:
    paths = string_list(name, value)
    hint = "write [/etc/shadow, /root], without . and .."
    for item in paths:
        try:
            if not item.startswith("/") or sandbox_path(item) != item:
                raise invalid(name, "a list of absolute paths", item, hint)
        except InvalidRequest as exc:
            raise invalid(name, "a list of absolute paths", item, hint) from exc
    return paths


def alias_map(name: str, value: object) -> dict[str, str]:
    """Accept a mapping, or strings `alias=image`. Cycles are refused."""
    pairs = dict(_split_alias(item) for item in pair_list(name, value))
    try:
        all_aliases(pairs)
    except InvalidImage as exc:
        raise InvalidConfiguration(f"{name}: {exc.message}", hint=exc.hint, setting=name) from exc
    return pairs


def _split_alias(written: str) -> tuple[str, str]:
    alias, _, target = written.partition("=")
    return alias, target


def mount_list(name: str, value: object) -> tuple[str, ...]:
    """Return each mount as one string, which `config show` prints and a variable can hold."""
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",") if part.strip()]
    try:
        # The data directory is not known yet; `resolver` checks the mounts against it.
        return tuple(mount_text(rule) for rule in parse_mounts(value, "/nonexistent"))
    except InvalidRequest as exc:
        raise InvalidConfiguration(f"{name}: {exc.message}", hint=exc.hint, setting=name) from exc
