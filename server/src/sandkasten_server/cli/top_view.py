"""The rows of `sandkasten top`, their order, and lines for a screen of any size. Pure."""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING, Final

from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.sandbox.usage import SessionUsage
from sandkasten_server.cli.output import age, counted, size, visible

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from sandkasten.model.sandbox.sandbox_values import Info

KEYS: Final = "q quit  sort: c cpu  m mem  d disk  n net  r run  a age  R reverse  / filter"


@dataclass(frozen=True, slots=True)
class Row:
    info: Info
    usage: SessionUsage
    cpu_percent: float | None
    """Since the look before."""
    net_bps: float | None
    age_s: float

    @property
    def command(self) -> str:
        """The newest command that runs."""
        newest = self.usage.commands[-1].command if self.usage.commands else ""
        return " ".join(newest.split())


@dataclass(slots=True)
class View:
    """The order, filter and position that the user chose."""

    sort: str = "c"
    reverse: bool = False
    filter: str = ""
    typing: bool = False
    """Whether keys are added to the filter."""
    first: int = 0
    """The first row on the screen."""
    quit: bool = False

    def press(self, key: str, page: int) -> None:
        """Apply one key: a character, or the name of a special one."""
        if self.typing:
            self._type(key)
        elif key == "q":
            self.quit = True
        elif key == "R":
            self.reverse = not self.reverse
        elif key == "/":
            self.typing, self.filter, self.first = True, "", 0
        elif key == "escape":
            self.filter = ""
        elif key in _ORDER:
            self.sort, self.reverse, self.first = key, False, 0
        else:
            self.first = max(0, self.first + _STEPS.get(key, 0) * (page if "page" in key else 1))

    def _type(self, key: str) -> None:
        if key in ("enter", "escape"):
            self.typing = False
            self.filter = self.filter if key == "enter" else ""
        elif key == "backspace":
            self.filter = self.filter[:-1]
        elif len(key) == 1 and key.isprintable():
            self.filter = (self.filter + key)[:80]


_UNKNOWN: Final = SessionUsage()
# By what each key sorts, the largest first.
_ORDER: Final[Mapping[str, Callable[[Row], float]]] = {
    "c": lambda row: row.cpu_percent or 0,
    "m": lambda row: row.usage.memory_bytes or 0,
    "d": lambda row: row.usage.disk_bytes or 0,
    "n": lambda row: row.net_bps or 0,
    "r": lambda row: row.usage.running or 0,
    "a": lambda row: row.age_s,
}
_STEPS: Final = {"up": -1, "k": -1, "down": 1, "j": 1, "page up": -1, "page down": 1}


def rows_of(
    infos: Sequence[Info], before: Mapping[str, SessionUsage], seconds: float, now: float
) -> list[Row]:
    """Return a row for each sandbox; `before` is what they used `seconds` ago."""
    rows = []
    for info in infos:
        usage = info.usage or _UNKNOWN
        old = before.get(info.id, _UNKNOWN)
        cpu = _rate(usage.cpu_usec, old.cpu_usec, seconds)
        net = _rate(_traffic(usage), _traffic(old), seconds)
        percent = None if cpu is None else cpu / 1e4
        rows.append(Row(info, usage, percent, net, now - info.created_at))
    return rows


def chosen(rows: Sequence[Row], view: View) -> list[Row]:
    """Return the rows that match the filter, in the order that was chosen."""
    wanted = view.filter.lower()
    matching = [row for row in rows if wanted in _searched(row)]
    # The id makes the order the same at each look.
    matching.sort(key=lambda row: row.info.id)
    matching.sort(key=_ORDER[view.sort], reverse=not view.reverse)
    return matching


def screen(rows: Sequence[Row], view: View, title: str, width: int, height: int) -> list[str]:
    """Return the lines of a screen, none of them wider than it."""
    matching = chosen(rows, view)
    room = max(1, height - 4)
    view.first = max(0, min(view.first, len(matching) - room))
    columns = _columns(width, tenants=len({row.info.tenant for row in rows}) > 1)
    lines = [fit(title, width), fit(_sums(rows, matching), width)]
    lines += [_line([column.title for column in columns], columns, width)]
    lines += [
        _line([column.cell(row) for column in columns], columns, width)
        for row in matching[view.first : view.first + room]
    ]
    lines += [""] * (height - 1 - len(lines))
    foot = f"filter: {view.filter}_  (Enter keeps it, Esc clears it)" if view.typing else KEYS
    return [*lines[: height - 1], fit(foot, width)]


def table(rows: Sequence[Row], width: int) -> list[str]:
    """Return the lines of a table without a screen around it."""
    columns = _columns(width, tenants=len({row.info.tenant for row in rows}) > 1)
    shown = [[column.title for column in columns]]
    shown += [[column.cell(row) for column in columns] for row in chosen(rows, View())]
    return [_line(cells, columns, width).rstrip() for cells in shown]


def fit(text: str, width: int) -> str:
    """Return the text, made visible and cut to the cells of a terminal that it may take."""
    text = visible(text)
    if sum(map(_cells, text)) <= width:
        return text
    used, end = 0, 0
    # Room for the mark, which takes one cell.
    while used + _cells(text[end]) < width:
        used += _cells(text[end])
        end += 1
    return text[:end] + "~" if width > 0 else ""


def _cells(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


@dataclass(frozen=True, slots=True)
class _Column:
    title: str
    width: int
    cell: Callable[[Row], str]
    right: bool = True
    least: int = 0
    """The width of a terminal from which on it is shown."""


def _columns(width: int, *, tenants: bool) -> list[_Column]:
    wide = width >= 100
    columns = [
        _Column("ID", 20 if wide else 12, lambda row: row.info.id[: 20 if wide else 12], False),
        _Column("IMAGE", 16, lambda row: row.info.image, False, 120),
        _Column("STATE", 7, lambda row: row.info.status, False),
        _Column("CPU%", 6, lambda row: _number(row.cpu_percent)),
        _Column("MEM", 10, lambda row: size(row.usage.memory_bytes)),
        _Column("MEM%", 4, _memory_share, True, 100),
        _Column("DISK", 10, lambda row: size(row.usage.disk_bytes), True, 70),
        _Column("NET/s", 10, lambda row: _bytes(row.net_bps), True, 60),
        _Column("PIDS", 5, lambda row: _count(row.usage.pids), True, 100),
        _Column("AGE", 7, lambda row: age(row.age_s), True, 120),
        _Column("RUN", 3, lambda row: _count(row.usage.running)),
        _Column("COMMAND", 0, lambda row: row.command, False),
    ]
    if tenants:
        columns.insert(0, _Column("TENANT", 12, lambda row: row.info.tenant, False))
    return [column for column in columns if width >= column.least]


def _line(cells: Sequence[str], columns: Sequence[_Column], width: int) -> str:
    parts = []
    for cell, column in zip(cells, columns, strict=True):
        text = fit(cell, column.width) if column.width else cell
        blank = " " * (column.width - sum(_cells(char) for char in text))
        parts.append(blank + text if column.right else text + blank)
    return fit(" ".join(parts), width)


def _sums(rows: Sequence[Row], matching: Sequence[Row]) -> str:
    running = sum(row.info.status == "running" for row in rows)
    commands = sum(row.usage.running or 0 for row in rows)
    cpu = sum(row.cpu_percent or 0 for row in rows)
    memory = sum(row.usage.memory_bytes or 0 for row in rows)
    shown = "" if len(matching) == len(rows) else f", {len(matching)} shown"
    return (
        f"{counted(len(rows), 'sandbox', 'sandboxes')}, {running} running{shown}; "
        f"{counted(commands, 'command')}; cpu {cpu:.0f}%; memory {size(memory)}"
    )


def _searched(row: Row) -> str:
    info = row.info
    labels = (f"{name}={value}" for name, value in info.labels.items())
    commands = (command.command for command in row.usage.commands)
    words = (info.id, info.image, info.status, info.session_key or "", info.tenant)
    return " ".join((*words, *labels, *commands)).lower()


def _rate(now: int | None, before: int | None, seconds: float) -> float | None:
    if now is None or before is None or seconds <= 0:
        return None
    return max(0, now - before) / seconds


def _traffic(usage: SessionUsage) -> int | None:
    if usage.rx_bytes is None or usage.tx_bytes is None:
        return None
    return usage.rx_bytes + usage.tx_bytes


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _count(value: int | None) -> str:
    return "-" if value is None else str(value)


def _bytes(value: float | None) -> str:
    return "-" if value is None else size(int(value))


def _memory_share(row: Row) -> str:
    used, limit = row.usage.memory_bytes, row.usage.memory_limit_bytes
    return "-" if used is None or not limit else f"{100 * used / limit:.0f}"
