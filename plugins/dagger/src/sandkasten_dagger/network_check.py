"""Whether the containers of an engine really reach nothing, asked of our runner inside one. Pure.

Our runner tries to connect to addresses that are reserved for documentation. Without a route the
kernel refuses at once; with one the attempt goes on until the script cancels it. No server is
involved, and no image.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sandkasten.errors import Cancelled
from sandkasten.model.images.resolved_image import Image
from sandkasten.model.sandbox.cell_spec import CellSpec
from sandkasten.model.sandbox.oneshot_values import RunOrder
from sandkasten_runtime.wire.script import Answers, Script

if TYPE_CHECKING:
    from collections.abc import Iterable

_ADDRESSES: Final = ("192.0.2.1", "2001:db8::1")
_PORT: Final = 9
_SECONDS: Final = 30.0
_MOST_BYTES: Final = 64 * 1024


def check_order() -> RunOrder:
    """Return the order whose answers `reached` reads."""
    script = Script()
    streams = [script.call("port.connect", {"host": host, "port": _PORT}) for host in _ADDRESSES]
    for stream in streams:
        script.cancel(stream)
    empty = CellSpec(image=Image("empty", "engine"))
    return RunOrder("network-check", empty, script.parts, _SECONDS, _MOST_BYTES)


def reached(answers: Iterable[bytes]) -> list[str]:
    """Return the addresses to which there was a route."""
    results = Answers(answers)
    return [
        address
        for stream, address in enumerate(_ADDRESSES, start=1)
        if results[stream].result is not None or isinstance(results[stream].error, Cancelled)
    ]
