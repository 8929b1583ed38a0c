"""How much a pull may take: settings of every backend and store that pulls images."""

from __future__ import annotations

from sandkasten.lazy_dataclass import dataclass
from sandkasten.settings.setting_fields import setting
from sandkasten.settings.setting_parsers import positive_integer
from sandkasten.settings.setting_parsers import seconds as parse_seconds


@dataclass(frozen=True, slots=True)
class PullLimits:
    seconds: float = setting(
        "images.pull_timeout_seconds", parse_seconds, 3600.0, "How long a pull may take."
    )
    image_bytes: int = setting(
        "images.pull_max_bytes",
        positive_integer,
        20 << 30,
        "Largest image that is pulled: its layers, compressed and unpacked.",
    )
    store_bytes: int = setting(
        "images.max_bytes",
        positive_integer,
        50 << 30,
        "Size of the image store beyond which requests pull nothing.",
    )
