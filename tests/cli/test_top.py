"""`top`: what it draws, and on a real terminal with a real daemon."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace

import pytest

from sandkasten.model.sandbox.sandbox_values import Info
from sandkasten.model.sandbox.usage import RunningCommand, SessionUsage
from sandkasten_server.cli.top import keys_in
from sandkasten_server.cli.top_view import KEYS, View, chosen, fit, rows_of, screen
from tests.cli.conftest import UNISOLATED
from tests.cli.terminal import Person
from tests.client.http.served import served

HOSTILE = "sh -c '\x1b]52;c;aGk=\x07\u202eevil\n漢字漢字漢字漢字漢字漢字漢字漢字漢字漢字漢字'"


def _infos():
    return [
        Info(
            f"sbx_{number:016x}",
            "host",
            "running",
            created_at=1000.0 - number,
            expires_at=2000,
            labels={"team": f"t{number % 3}"},
            usage=SessionUsage(
                memory_bytes=(number + 1) * 2**20,
                memory_limit_bytes=2**30,
                cpu_usec=number * 1_000_000,
                rx_bytes=0,
                tx_bytes=100 * number,
                running=1,
                commands=(RunningCommand("exe_1", HOSTILE, 0.0),),
            ),
        )
        for number in range(40)
    ]


def _rows():
    infos = _infos()
    before = {one.id: SessionUsage(cpu_usec=0, rx_bytes=0, tx_bytes=0) for one in infos}
    return rows_of(infos, before, 2.0, 1000.0)


@pytest.mark.promise("P92")
@pytest.mark.parametrize(("width", "height"), [(80, 24), (200, 60), (30, 6), (5, 2), (1, 1)])
def test_a_screen_is_never_wider_or_higher_than_the_terminal(width, height):
    lines = screen(_rows(), View(), "sandkasten top", width, height)
    assert len(lines) == max(1, height)
    for line in lines:
        wide = sum(2 if one in "漢字" else 1 for one in line)
        assert wide <= width, line
        assert line.isprintable(), line


def test_eighty_columns_show_use_and_command():
    lines = screen(_rows(), View(), "top", 80, 24)
    assert lines[1] == "40 sandboxes, 40 running; 40 commands; cpu 39000%; memory 820.0 MiB"
    assert lines[2].split() == ["ID", "STATE", "CPU%", "MEM", "DISK", "NET/s", "RUN", "COMMAND"]
    # A processor of 39 seconds in two.
    assert lines[3].split()[:9] == [
        "sbx_00000000", "running", "1950.0", "40.0", "MiB", "-", "1.9", "KiB", "1",
    ]  # fmt: skip
    assert "\\x1b]52" in screen(_rows(), View(), "top", 160, 24)[3]
    assert lines[-1] == KEYS


def test_a_text_is_cut_at_the_cells_that_it_takes():
    cut = [fit("漢字漢", width) for width in range(7)]
    assert cut == ["", "~", "~", "漢~", "漢~", "漢字~", "漢字漢"]


def test_keys_sort_filter_scroll_and_quit():
    view, rows = View(), _rows()
    first = {}
    for key in "cmnra":
        view.press(key, 10)
        first[key] = [int(row.info.id[4:], 16) for row in chosen(rows, view)][0]
    assert first == {"c": 39, "m": 39, "n": 39, "r": 0, "a": 39}
    view.press("R", 10)
    assert chosen(rows, view)[0].info.id.endswith("00")
    for key in ("/", *"team=T2", "enter", "q"):
        view.press(key, 10)
    assert (view.filter, view.quit) == ("team=T2", True)
    assert {row.info.labels["team"] for row in chosen(rows, view)} == {"t2"}
    view.press("escape", 10)
    assert len(chosen(rows, view)) == 40
    for key in ("page down", "page down", "down", "k"):
        view.press(key, 20)
    screen(rows, view, "top", 80, 24)
    # Not past the last row.
    assert view.first == 20


def test_keys_of_a_terminal_are_read_one_by_one():
    assert keys_in("c\x1b[A\x1b[1;5D\x1b[6~/x\x7f\r\x1b") == [
        "c", "up", "page down", "/", "x", "backspace", "enter", "escape",
    ]  # fmt: skip


def test_a_sandbox_that_is_not_measured_is_shown_without_numbers():
    (info,) = _infos()[:1]
    (row,) = rows_of([replace(info, usage=None, status="creating")], {}, 2.0, 1000.0)
    assert screen([row], View(), "top", 80, 24)[3].split()[1:] == [
        "creati~",
        "-",
        "-",
        "-",
        "-",
        "-",
    ]


@pytest.fixture
def served_box(tmp_path, unisolated_only, cli):
    """A daemon with a sandbox that runs a command with a hostile name."""
    with served(tmp_path / "data"):
        box = cli("create", "--label", "a=b").out.strip()
        begun = cli("exec", "-d", box, "sh", "-c", "sleep 300; : '\x1b]52;c;aGk=\x07'")
        assert begun.status == 0, begun
        yield box


@pytest.mark.promise("P92")
@pytest.mark.slow
def test_top_draws_on_a_terminal_and_leaves_it_as_it_was(served_box):
    with Person([*UNISOLATED, "top", "--interval", "200ms"], rows=24, cols=80) as person:
        person.wait_for("\x1b[?1049h")
        person.wait_for(served_box[:12])
        assert not person.cooked()
        person.type("/a=b\rm")
        person.wait_for("1 sandbox, 1 running")
        person.resize(30, 160)
        person.wait_for("AGE")
        person.wait_for("\\x1b]52;c;aGk=\\x07")
        person.type("/nothing")
        person.wait_for("filter: nothing_")
        person.wait_for("0 shown")
        person.type("\x1bq")
        assert person.status() == 0
        assert person.cooked()
        assert b"\x1b[?1049l" in person.seen
        assert b"\x1b]52" not in person.seen


@pytest.mark.slow
def test_top_that_is_ended_from_outside_restores_the_terminal(served_box):
    for how, status in (("\x03", 130), (signal.SIGTERM, 143)):
        with Person([*UNISOLATED, "top"]) as person:
            person.wait_for(served_box)
            if isinstance(how, str):
                person.type(how)
            else:
                os.kill(person.pid, how)
            assert person.status() == status
            assert person.cooked()
            assert b"\x1b[?1049l" in person.seen
            assert b"Traceback" not in person.seen


@pytest.mark.slow
def test_top_without_a_terminal_prints_one_table_or_document(served_box, cli):
    once = cli("top")
    assert once.status == 0, once
    head, line = once.out.splitlines()
    assert (head.split()[0], line.split()[0]) == ("ID", served_box)
    assert "\\x1b]52;c;aGk=\\x07" in line
    (shown,) = json.loads(cli("top", "--json").out)
    assert (shown["id"], shown["usage"]["running"]) == (served_box, 1)
    assert shown["usage"]["commands"][0]["command"].startswith("sh -c ")
    assert json.loads(cli("--embedded", "top", "--json").out) == []
