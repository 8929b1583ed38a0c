"""Make a daemon do its periodic work `SANDKASTEN_SCALE_SLOWNESS` times less often.

Python imports this module at its start if the directory is in `PYTHONPATH`. On a machine that is
too small for all replicas at once, they then do the same work in a longer time.
"""

from __future__ import annotations

import os

from sandkasten_runtime.engine import engine
from sandkasten_runtime.engine.lifecycle import end_watch

_SLOWNESS = float(os.environ["SANDKASTEN_SCALE_SLOWNESS"])
end_watch.ROUND_S *= _SLOWNESS
engine.SWEEP_EVERY_S *= _SLOWNESS
