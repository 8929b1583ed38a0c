"""The engines of a test run: one of each kind, started on first use and removed at the end.

A run that starts another one passes its engines through the environment, so that ten suites on
docker cost one start and one import of a Debian image. Call `close` at the end; otherwise the
keeper of each engine removes it.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Literal

from tests.engines import stock
from tests.engines.engine import Engine, missing
from tests.engines.machine import sweep
from tests.engines.reached import Reached

if TYPE_CHECKING:
    from collections.abc import Mapping

Kind = Literal["local", "remote", "private"]
ENGINES = "TEST_SANDKASTEN_ENGINES"

_ours: dict[Kind, Engine] = {}
_stocked: set[tuple[Kind, str]] = set()


def engine(kind: Kind, *images: str) -> Reached:
    """`local` is on this host, `remote` appears to be on another one, behind mTLS."""
    lent = json.loads(os.environ.get(ENGINES, "{}"))
    if kind == "private":
        found = (_ours.get(kind) or _start(kind)).reached
    elif kind not in lent:
        found = _start(kind).reached
        # Every process that starts from now on has it too.
        os.environ.update(environment(**{**_all(lent), kind: found}))
    else:
        found = Reached(**lent[kind])
    wanted = {(kind, image) for image in images} - _stocked
    if wanted:
        stock.put(found, *(image for _, image in sorted(wanted)))
        _stocked.update(wanted)
    return found


def start_all() -> None:
    """Start what is lent, with all images, for processes that will use it at the same time."""
    engine("local", "debian", "busybox")
    engine("remote", "debian")


def _start(kind: Kind) -> Engine:
    why = missing()
    if why:
        raise RuntimeError(why)
    if not _ours:
        sweep()
    made = Engine(tcp="mtls", apart=True) if kind == "remote" else Engine(shares=True)
    _ours[kind] = made.__enter__()
    return _ours[kind]


def _all(lent: Mapping[str, Mapping[str, str]]) -> dict[str, Reached]:
    return {kind: Reached(**one) for kind, one in lent.items()}


def environment(**engines: Reached) -> dict[str, str]:
    """Return the environment for a run that shares these engines."""
    return {ENGINES: json.dumps({kind: asdict(one) for kind, one in engines.items()})}


def close() -> None:
    if _ours:
        os.environ.pop(ENGINES, None)
        _stocked.clear()
    while _ours:
        _ours.popitem()[1].__exit__()
