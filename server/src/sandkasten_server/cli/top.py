"""`sandkasten top`: look at all sandboxes again and again, and draw what they use.

The terminal is restored however it ends: by a key, a signal or an error.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from sandkasten.errors import SandkastenError
from sandkasten.model.json_codec import to_json
from sandkasten_server.cli.commands.listings import described
from sandkasten_server.cli.output import put, put_json
from sandkasten_server.cli.top_view import View, rows_of, screen, table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sandkasten.client.server.transport import Transport
    from sandkasten.model.sandbox.usage import SessionUsage
    from sandkasten_server.cli.state import State
    from sandkasten_server.cli.top_view import Row

# Long enough for a share of the processor, short enough to wait for.
_FIRST_S: Final = 0.5
_WIDTH_OF_NO_TERMINAL: Final = 160
# The alternate screen without a cursor, and back.
_OPEN: Final = "\x1b[?1049h\x1b[?25l"
_CLOSE: Final = "\x1b[?25h\x1b[?1049l"
_SPECIAL: Final = {
    "\x1b[A": "up",
    "\x1b[B": "down",
    "\x1b[5~": "page up",
    "\x1b[6~": "page down",
    "\x1b": "escape",
    "\r": "enter",
    "\n": "enter",
    "\x7f": "backspace",
    "\b": "backspace",
}


class _Looks:
    """Looks at the sandboxes; each look is compared with the one before."""

    def __init__(self, transport: Transport, *, all_tenants: bool) -> None:
        self._transport = transport
        self._all_tenants = all_tenants
        self._before: dict[str, SessionUsage] = {}
        self._at = 0.0

    async def rows(self) -> list[Row]:
        infos = await self._transport.list(all_tenants=self._all_tenants, usage=True)
        now = time.monotonic()
        rows = rows_of(infos, self._before, now - self._at, time.time())
        self._before = {info.id: info.usage for info in infos if info.usage is not None}
        self._at = now
        return rows


async def show_once(state: State, *, all_tenants: bool) -> None:
    """Print one table, or one JSON document."""
    looks = await _looks(state, all_tenants=all_tenants)
    await looks.rows()
    await asyncio.sleep(_FIRST_S)
    rows = await looks.rows()
    if state.json:
        put_json([_document(row) for row in rows])
        return
    width = os.get_terminal_size().columns if sys.stdout.isatty() else _WIDTH_OF_NO_TERMINAL
    for line in table(rows, width):
        put(line)


async def show_live(state: State, *, all_tenants: bool, interval_s: float) -> None:
    """Draw until the user quits."""
    looks = await _looks(state, all_tenants=all_tenants)
    rows = await looks.rows()
    view, changed = View(), asyncio.Event()
    where = state.place.url or "this process"
    title = f"sandkasten top - {where}"

    def draw(note: str = "") -> None:
        size = os.get_terminal_size(sys.stdout.fileno())
        shown = f"{title} - {time.strftime('%H:%M:%S')}{note}"
        lines = screen(rows, view, shown, size.columns, size.lines)
        sys.stdout.write("\x1b[H" + "\r\n".join(f"{line}\x1b[K" for line in lines) + "\x1b[J")
        sys.stdout.flush()

    def typed() -> None:
        page = max(1, os.get_terminal_size(sys.stdout.fileno()).lines - 4)
        for key in keys_in(os.read(sys.stdin.fileno(), 1024).decode("utf-8", "replace")):
            view.press(key, page)
        changed.set()

    loop = asyncio.get_running_loop()
    with _drawing(sys.stdin.fileno()):
        loop.add_reader(sys.stdin.fileno(), typed)
        loop.add_signal_handler(signal.SIGWINCH, changed.set)
        looking = asyncio.create_task(_after(_FIRST_S, looks))
        try:
            draw()
            while not view.quit:
                pressing = asyncio.create_task(changed.wait())
                await asyncio.wait({looking, pressing}, return_when=asyncio.FIRST_COMPLETED)
                pressing.cancel()
                changed.clear()
                note = ""
                if looking.done():
                    try:
                        rows = looking.result()
                    except SandkastenError as exc:
                        # A daemon that restarts comes back.
                        note = f" - {exc.message}"
                    looking = asyncio.create_task(_after(interval_s, looks))
                draw(note)
        finally:
            looking.cancel()
            loop.remove_signal_handler(signal.SIGWINCH)
            loop.remove_reader(sys.stdin.fileno())


def keys_in(text: str) -> list[str]:
    """Return the keys of what a terminal sent: characters, and names of special keys."""
    keys = []
    while text:
        key = next((special for special in _SPECIAL if text.startswith(special)), text[0])
        if key == "\x1b" and text[1:2] == "[":
            # A sequence that means nothing here.
            end = next((at for at, char in enumerate(text[2:], 3) if "@" <= char <= "~"), len(text))
            text = text[end:]
            continue
        keys.append(_SPECIAL.get(key, key))
        text = text[len(key) :]
    return keys


async def _looks(state: State, *, all_tenants: bool) -> _Looks:
    from sandkasten.client.server.server_pool import connect

    return _Looks(await connect(state.place), all_tenants=all_tenants)


async def _after(seconds: float, looks: _Looks) -> list[Row]:
    await asyncio.sleep(seconds)
    return await looks.rows()


@contextmanager
def _drawing(descriptor: int) -> Iterator[None]:
    """Give keys without waiting for Enter, and our own screen."""
    import termios
    import tty

    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor, termios.TCSADRAIN)
        settings = termios.tcgetattr(descriptor)
        # Ctrl-Z would leave the shell with our screen.
        settings[6][termios.VSUSP] = b"\0"
        termios.tcsetattr(descriptor, termios.TCSADRAIN, settings)
        sys.stdout.write(_OPEN)
        sys.stdout.flush()
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
        sys.stdout.write(_CLOSE)
        sys.stdout.flush()


def _document(row: Row) -> dict[str, object]:
    percent = None if row.cpu_percent is None else round(row.cpu_percent, 1)
    usage = None if row.info.usage is None else to_json(row.info.usage)
    return {
        **described(row.info),
        "tenant": row.info.tenant,
        "usage": usage,
        "cpu_percent": percent,
        "network_bytes_per_second": None if row.net_bps is None else round(row.net_bps),
    }
