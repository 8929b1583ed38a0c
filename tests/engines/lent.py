"""The engines of a run: started when first asked for, one of each kind, gone when it ends.

A run that starts another one lends it its engines through the environment, so that ten suites on
docker cost one start and one import of a Debian image. `close` belongs at the end of what began;
should it not come to that, every engine has a keeper of its own.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from typing import Literal

from tests.engines import stock
from tests.engines.engine import Engine, missing
from tests.engines.machine import sweep
from tests.engines.reached import Reached

Kind = Literal["local", "remote"]
ENGINES = "SANDKASTEN_TEST_ENGINES"

_ours: dict[Kind, Engine] = {}


def engine(kind: Kind, *images: str) -> Reached:
    """`local` is on this machine, `remote` on another one as far as it can tell, behind mTLS."""
    lent = json.loads(os.environ.get(ENGINES, "{}"))
    if kind in lent:
        return Reached(**lent[kind])
    if kind not in _ours:
        why = missing()
        if why:
            raise RuntimeError(why)
        if not _ours:
            sweep()
        made = Engine() if kind == "local" else Engine(tcp="mtls", apart=True)
        _ours[kind] = made.__enter__()
    found = _ours[kind].reached
    stock.put(found, *images)
    return found


def environment(**engines: Reached) -> dict[str, str]:
    """For a run to which these are lent."""
    return {ENGINES: json.dumps({kind: asdict(one) for kind, one in engines.items()})}


def close() -> None:
    while _ours:
        _ours.popitem()[1].__exit__()
