"""The engines of a run: started when first asked for, one of each kind, gone when it ends.

A run that starts another one lends it its engines through the environment, so that ten suites on
docker cost one start and one import of a Debian image. `close` belongs at the end of what began;
should it not come to that, every engine has a keeper of its own.
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

Kind = Literal["local", "remote"]
ENGINES = "SANDKASTEN_TEST_ENGINES"

_ours: dict[Kind, Engine] = {}
_stocked: set[tuple[Kind, str]] = set()


def engine(kind: Kind, *images: str) -> Reached:
    """`local` is on this machine, `remote` on another one as far as it can tell, behind mTLS."""
    lent = json.loads(os.environ.get(ENGINES, "{}"))
    if kind not in lent:
        found = _start(kind).reached
        # Whatever we start from now on has it too.
        os.environ.update(environment(**{**_all(lent), kind: found}))
    else:
        found = Reached(**lent[kind])
    wanted = {(kind, image) for image in images} - _stocked
    if wanted:
        stock.put(found, *(image for _, image in sorted(wanted)))
        _stocked.update(wanted)
    return found


def _start(kind: Kind) -> Engine:
    why = missing()
    if why:
        raise RuntimeError(why)
    if not _ours:
        sweep()
    made = Engine(shares=True) if kind == "local" else Engine(tcp="mtls", apart=True)
    _ours[kind] = made.__enter__()
    return _ours[kind]


def _all(lent: Mapping[str, Mapping[str, str]]) -> dict[str, Reached]:
    return {kind: Reached(**one) for kind, one in lent.items()}


def environment(**engines: Reached) -> dict[str, str]:
    """For a run to which these are lent."""
    return {ENGINES: json.dumps({kind: asdict(one) for kind, one in engines.items()})}


def close() -> None:
    if _ours:
        os.environ.pop(ENGINES, None)
        _stocked.clear()
    while _ours:
        _ours.popitem()[1].__exit__()
