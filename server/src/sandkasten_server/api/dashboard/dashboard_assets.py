"""The built files of the dashboard, read once, compressed, with the headers that protect a page.

`make dashboard` builds them from `dashboard/` into `sandkasten_server/_dashboard`.
"""

from __future__ import annotations

import gzip
import hashlib
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from starlette.responses import Response

from sandkasten.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

FOLDER: Final = Path(__file__).resolve().parents[2] / "_dashboard"
INDEX: Final = "index.html"
_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}\.(html|js|css|svg)\Z")
CSP: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' blob:",
        "connect-src 'self'",
        "font-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
_HEADERS: Final = {
    "content-security-policy": CSP,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
    # A new daemon has new files under the same names.
    "cache-control": "no-cache",
    "vary": "accept-encoding",
}
_ABSENT: Final = (
    "This daemon has no dashboard: its files were not built.\n"
    "hint: run make dashboard in the checkout; the API is described at /docs\n"
)


@dataclass(frozen=True, slots=True)
class Asset:
    kind: str
    etag: str
    plain: bytes
    packed: bytes


def read_assets(folder: Path = FOLDER) -> dict[str, Asset]:
    """Return the built files by name; none if they were not built."""
    if not (folder / INDEX).is_file():
        return {}
    assets: dict[str, Asset] = {}
    for path in sorted(folder.iterdir()):
        if _NAME.match(path.name):
            plain = path.read_bytes()
            etag = f'"{hashlib.sha256(plain).hexdigest()[:32]}"'
            packed = gzip.compress(plain, 9, mtime=0)
            assets[path.name] = Asset(_TYPES[path.suffix], etag, plain, packed)
    return assets


def asset_response(asset: Asset, headers: Mapping[str, str]) -> Response:
    """Return a file, compressed if the client accepts it; 304 if the client has it."""
    common = {**_HEADERS, "etag": asset.etag}
    if asset.etag in headers.get("if-none-match", ""):
        return Response(status_code=304, headers=common)
    common["content-type"] = asset.kind
    if "gzip" in headers.get("accept-encoding", ""):
        return Response(asset.packed, headers={**common, "content-encoding": "gzip"})
    return Response(asset.plain, headers=common)


def absent_response() -> Response:
    return Response(_ABSENT, 503, headers=_HEADERS, media_type="text/plain")
