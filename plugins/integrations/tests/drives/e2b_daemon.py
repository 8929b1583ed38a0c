"""A daemon in this environment, and the variables that lead E2B's SDKs to it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

KEY = "e2b_" + 40 * "0"


@contextmanager
def e2b_daemon() -> Iterator[None]:
    words = [sys.executable, "-m", "sandkasten_server.cli", "serve", "--listen", "127.0.0.1:0"]
    env = {**os.environ, "SANDKASTEN_API_KEY": KEY}
    with subprocess.Popen(words, env=env, stderr=subprocess.PIPE, text=True) as process:
        try:
            output = ""
            while (match := re.search(r"sandkasten serves (\S+) and", output)) is None:
                line = process.stderr.readline()
                if not line:
                    raise RuntimeError(f"the daemon did not start: {output}")
                output += line
            # Its log would fill the pipe and stop it.
            threading.Thread(target=process.stderr.read, daemon=True).start()
            url = f"{match[1]}/e2b"
            os.environ.update(E2B_API_URL=url, E2B_SANDBOX_URL=url, E2B_API_KEY=KEY)
            yield
        finally:
            process.terminate()
