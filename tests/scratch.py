"""Where fixtures put directories that any user may pass through: on a disk, or in memory."""

from __future__ import annotations

import os

SCRATCH = os.environ.get("SK_SCRATCH", "/var/tmp")
