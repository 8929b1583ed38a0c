"""A killed daemon: its audit log verifies, and the commands of its last moment are in it."""

from __future__ import annotations

import signal

import pytest

from sandkasten import Sandbox
from sandkasten.model.audit_chain import check_lines, row_of_line
from tests.client.http.served import served

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.promise("P86")]


def test_commands_that_a_killed_daemon_did_not_record_are_recorded_by_the_next(tmp_path):
    data = tmp_path / "data"
    with served(data, backend="local") as first:
        box = Sandbox(**first.where)
        ran = {box.exec(["echo", str(number)]).exec_id for number in range(10)}
        first.process.send_signal(signal.SIGKILL)
        first.process.wait()
    with served(data, backend="local") as second:
        assert Sandbox.attach(box.id, **second.where).exec("echo on").output == "on\n"
        Sandbox.attach(box.id, **second.where).close()
    lines = [
        line
        for path in sorted((data / "audit").glob("*.jsonl"))
        for line in path.read_bytes().splitlines(keepends=True)
    ]
    assert check_lines(lines).flaw is None
    ended = [row for row in map(row_of_line, lines) if row.action == "exec.end"]
    assert ran <= {row.target for row in ended}
    assert len(ended) == len({row.target for row in ended})
    assert [row for row in ended if "recovered" in row.detail and "command" in row.detail] == []
