"""Which programs are fetching packages."""

from __future__ import annotations

from pathlib import Path


def fetchers(data_dir: Path) -> list[str]:
    """Return the command lines of processes that fetch for this data directory."""
    lines = []
    for entry in Path("/proc").iterdir():
        try:
            line = (entry / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if str(data_dir) in line and "\0download\0" in line:
            lines.append(line)
    return lines
