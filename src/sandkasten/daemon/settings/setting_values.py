"""Settings whose values follow rules of their own: images and their aliases, paths, mounts.

Each takes the setting's name and what was said, and gives what is kept of it;
InvalidConfiguration names the setting.
"""

from __future__ import annotations

from sandkasten.daemon.settings.setting_parsers import bad, names
from sandkasten.errors import InvalidConfiguration, InvalidImage, InvalidRequest
from sandkasten.images.image_names import all_aliases, checked_name
from sandkasten.model.files.sandbox_paths import sandbox_path
from sandkasten.model.sandbox.host_mounts import mount_text, parse_mounts


def image(name: str, value: object) -> str:
    try:
        return checked_name(value)
    except InvalidImage as exc:
        raise InvalidConfiguration(f"{name}: {exc.message}", hint=exc.hint, setting=name) from exc


def images(name: str, value: object) -> list[str]:
    return [image(name, one) for one in names(name, value)]


def aliases(name: str, value: object) -> list[str]:
    """A mapping, or `alias=image` texts; kept as the latter. Loops are refused."""
    if isinstance(value, dict):
        value = [f"{alias}={image}" for alias, image in value.items()]
    pairs = dict(pair(one) for one in names(name, value))
    try:
        all_aliases(pairs)
    except InvalidImage as exc:
        raise InvalidConfiguration(f"{name}: {exc.message}", hint=exc.hint, setting=name) from exc
    return [f"{alias}={image}" for alias, image in pairs.items()]


def pair(text: str) -> tuple[str, str]:
    alias, _, image = text.partition("=")
    return alias, image


def paths(name: str, value: object) -> list[str]:
    found = names(name, value)
    for path in found:
        try:
            if not path.startswith("/") or sandbox_path(path) != path:
                raise bad(name, "a list of absolute paths", path)
        except InvalidRequest as exc:
            raise bad(name, "a list of absolute paths", path) from exc
    return found


def mounts(name: str, value: object) -> list[str]:
    """Each as one text, so that `config show` prints it and a variable can hold it."""
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",") if part.strip()]
    try:
        # Where the data lies is known later, and asked again then.
        return [mount_text(rule) for rule in parse_mounts(value, "/nonexistent")]
    except InvalidRequest as exc:
        raise InvalidConfiguration(f"{name}: {exc.message}", hint=exc.hint, setting=name) from exc
