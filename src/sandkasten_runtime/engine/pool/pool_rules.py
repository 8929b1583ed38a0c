"""The operator's rules for the warm pool, and how many sandboxes they keep ready. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sandkasten.errors import InvalidConfiguration, InvalidRequest
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.pool.pool_kinds import PoolKind, parse_pool_kind, pool_kind_text
from sandkasten.settings.setting_fields import setting
from sandkasten.settings.setting_parsers import (
    boolean,
    invalid,
    number,
    positive_integer,
    seconds,
    string_list,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

# Requests within this time are a burst, which the pool can serve only with as many sandboxes.
BURST_S: Final = 0.25
# The length of the lease of a pooled sandbox, from its last renewal; its idle time usually ends an
# abandoned one earlier. The reaper removes a sandbox that is older than this, and a new one takes
# its place.
LIFETIME_S: Final = 3600.0
# From then until a pass of the reaper.
_REAPED_S: Final = 120.0


def zero_or_one(name: str, value: object) -> int:
    parsed = number(name, value)
    if parsed not in (0, 1):
        raise invalid(name, "0 or 1", value, "write 0 for none, 1 for one")
    return int(parsed)


def module_list(name: str, value: object) -> tuple[str, ...]:
    modules = string_list(name, value)
    for module in modules:
        if not all(part.isidentifier() and part.isascii() for part in module.split(".")):
            raise invalid(name, "a list of Python modules", value, "write [numpy, xml.dom]")
    return modules


def pool_kinds(name: str, value: object) -> tuple[PoolKind, ...]:
    """Parse `IMAGE [ready=N] [profile=P] [backend=B] [network=none|full]`, one string each."""
    try:
        return tuple(parse_pool_kind(text) for text in string_list(name, value))
    except InvalidRequest as exc:
        raise InvalidConfiguration(f"{name}: {exc.message}", hint=exc.hint, setting=name) from exc


def show_pool_kinds(kinds: tuple[PoolKind, ...]) -> list[str]:
    return [pool_kind_text(kind) for kind in kinds]


@dataclass(frozen=True, slots=True)
class PoolRules:
    """The size of the warm pool of one engine, and the interpreters in it."""

    enabled: int = setting(
        "pool.oneshot_spares",
        zero_or_one,
        1,
        "Whether there is a warm pool, for sessions and one-shots (0 or 1).",
    )
    interpreters: bool = setting(
        "pool.interpreters",
        boolean,
        True,
        "Whether Python is started in a pooled sandbox before a one-shot claims it.",
    )
    python_modules: tuple[str, ...] = setting(
        "pool.python_modules",
        module_list,
        (),
        "Modules that this Python imports while it waits, where the image has them.",
    )
    max_per_kind: int = setting(
        "pool.max_per_kind",
        positive_integer,
        4,
        "Most sandboxes that demand keeps ready for one kind.",
    )
    max_total: int = setting(
        "pool.max_total",
        positive_integer,
        16,
        "Most sandboxes that are kept ready at a time.",
    )
    idle_s: float = setting(
        "pool.idle_seconds",
        seconds,
        60.0,
        "How long a sandbox is kept ready without a request; in an embedded engine at most 8.",
    )
    kinds: tuple[PoolKind, ...] = setting(
        "pool.kinds",
        pool_kinds,
        (),
        "Kinds that a daemon keeps ready from its start, such as python ready=4 network=none.",
        show=show_pool_kinds,
    )

    @property
    def imported(self) -> tuple[str, ...] | None:
        """Return the modules that a waiting Python imports; None: no Python waits."""
        return self.python_modules if self.interpreters else None

    @property
    def oldest_s(self) -> float:
        """Return the age that a sandbox can have when it is claimed."""
        return max(self.idle_s, LIFETIME_S + _REAPED_S) if self.kinds else self.idle_s

    def checked(self) -> PoolRules:
        listed = sum(kind.ready for kind in self.kinds)
        if listed > self.max_total:
            raise InvalidConfiguration(
                f"pool.kinds lists {listed} sandboxes, and pool.max_total is {self.max_total}",
                hint="raise pool.max_total, or keep fewer ready",
                setting="pool.kinds",
            )
        return self


def wanted_ready(times: Sequence[float], now: float, rules: PoolRules, listed: int) -> int:
    """Return how many of a kind should be ready, given when it was requested, oldest first.

    Nothing is kept for a single request: a program that runs once must leave nothing behind.
    """
    recent = [at for at in times if now - at <= rules.idle_s]
    if len(recent) < 2:
        return listed
    burst = max(sum(1 for at in recent if 0 <= at - first < BURST_S) for first in recent)
    return max(listed, min(rules.max_per_kind, burst))
