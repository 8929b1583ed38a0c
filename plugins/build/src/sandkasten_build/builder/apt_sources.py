"""This machine's Debian package sources: apt's own configuration, adapted to another suite.

Reads files and runs nothing. Third-party sources are left out: an image is made only of Debian.
Raises BuildFailed if nothing fits.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sandkasten.errors import BuildFailed
from sandkasten.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator

_MAX_FILE: Final = 1024 * 1024
# Rolling suites have no updates and no security beside them.
_ROLLING: Final = frozenset({"sid", "unstable", "experimental"})
_COMPANION: Final = re.compile(r"(?P<base>[a-z]+)(?P<rest>-updates|-security|/updates)?\Z")


@dataclass(frozen=True, slots=True)
class Source:
    """One mirror and suite."""

    uri: str
    suite: str
    components: tuple[str, ...]
    signed_by: str = ""

    def line(self) -> str:
        option = f"[signed-by={self.signed_by}] " if self.signed_by else ""
        return f"deb {option}{self.uri} {self.suite} {' '.join(self.components)}"


def machine_sources(etc: Path = Path("/etc")) -> list[Source]:
    """Return every enabled binary source of this machine, in apt's order."""
    files = [etc / "apt" / "sources.list"]
    folder = etc / "apt" / "sources.list.d"
    if folder.is_dir():
        files += sorted(p for p in folder.iterdir() if p.suffix in (".list", ".sources"))
    sources: list[Source] = []
    for file in files:
        try:
            text = file.read_bytes()[:_MAX_FILE].decode(errors="replace")
        except OSError:
            continue
        sources += _stanzas(text) if file.suffix == ".sources" else _lines(text)
    return sources


def sources_for(suite: str, etc: Path = Path("/etc")) -> list[Source]:
    """Return this machine's Debian sources, with the suite replaced by another one."""
    available = machine_sources(etc)
    base = suite
    fitting = _of(available, base)
    if not fitting:
        base = _codename(etc)
        fitting = _of(available, base) if base else []
    if not fitting:
        raise BuildFailed(
            f"apt on this machine has no source for Debian {suite}",
            hint="name one: --mirror URL (http, https or file)",
        )
    sources = []
    for source, rest in fitting:
        if rest and suite in _ROLLING:
            continue
        sources.append(Source(source.uri, suite + rest, source.components, source.signed_by))
    return sources


def _of(sources: list[Source], base: str) -> list[tuple[Source, str]]:
    matches = []
    for source in sources:
        match = _COMPANION.match(source.suite)
        if match is not None and match["base"] == base:
            matches.append((source, match["rest"] or ""))
    # Updates without the suite they update are not a complete Debian.
    return matches if any(not rest for _, rest in matches) else []


def _codename(etc: Path) -> str:
    """Return this machine's codename if it is a Debian: a derivative's sources have other
    packages.
    """
    try:
        text = (etc / "os-release").read_text(errors="replace")[:65536]
    except OSError:
        return ""
    release = dict(re.findall(r'^([A-Z_]+)="?([^"\n]*)"?$', text, re.MULTILINE))
    return release.get("VERSION_CODENAME", "") if release.get("ID") == "debian" else ""


def _lines(text: str) -> Iterator[Source]:
    for line in text.splitlines():
        match = re.match(r"\s*deb\s+(?:\[([^\]]*)\]\s+)?(\S+)\s+(\S+)\s*([^#]*)", line)
        if match is None:
            continue
        options = dict(re.findall(r"([a-z-]+)=(\S+)", match[1] or ""))
        yield Source(match[2], match[3], tuple(match[4].split()), options.get("signed-by", ""))


def _stanzas(text: str) -> Iterator[Source]:
    for block in re.split(r"\n\s*\n", text):
        fields: dict[str, str] = {}
        name = ""
        for line in block.splitlines():
            if line.startswith("#"):
                continue
            if line[:1].isspace():
                fields[name] = f"{fields.get(name, '')}\n{line.strip()}"
                continue
            name, _, value = line.partition(":")
            name = name.strip().lower()
            fields[name] = value.strip()
        if "deb" not in fields.get("types", "").split() or fields.get("enabled", "yes") == "no":
            continue
        signed_by = fields.get("signed-by", "")
        # A key written into the stanza has no name to pass on; apt's own keyrings remain.
        signed_by = signed_by if signed_by.startswith("/") else ""
        for uri in fields.get("uris", "").split():
            for suite in fields.get("suites", "").split():
                yield Source(uri, suite, tuple(fields.get("components", "").split()), signed_by)
