"""The published package `sandkasten` 0.3.0, another implementation's client, on our daemon."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.client.http.served import served
from tests.client_programs import run_client

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def seen() -> Iterator[dict[str, Any]]:
    program = Path(__file__).with_name("drive.py")
    with (
        tempfile.TemporaryDirectory(prefix="pytest-of-compat-", dir="/var/tmp") as place,
        served(Path(place) / "data", backend="local") as daemon,
    ):
        yield run_client(program, daemon.url, daemon.key, "host")


def test_the_tested_client_is_the_published_package(seen):
    assert seen["version"] == "0.3.0"


def test_sessions_are_created_found_listed_and_described(seen):
    assert seen["listed"] is True
    assert seen["info"] == ["running", "/workspace", "str", None]


@pytest.mark.promise("P41")
def test_commands_run_in_a_shell_that_remembers(seen):
    assert seen["exec"] == [1, "/tmp", ["err", "out"], False, True]
    assert seen["state"] == "1\n/tmp\n"
    assert seen["raw"] == "raw\n"


def test_a_deadline_is_a_result_with_the_output_so_far(seen):
    assert seen["timeout"][1].startswith("before\n")
    assert seen["timeout"][0] != 0


def test_output_streams_while_the_command_runs(seen):
    assert seen["stream"] == ["1\n2\n", True, True, 3, True]


def test_files_are_written_and_read_byte_for_byte(seen):
    assert seen["read"] == ["grüße", "/workspace/a/text.txt", False]
    assert (seen["binary"], seen["empty"]) == (True, True)
    assert seen["cut"] == [10, True]


def test_uploads_arrive_byte_for_byte(seen):
    assert seen["upload"] == ["/workspace/data.bin"]
    assert seen["uploaded"] is True
    assert seen["upload_to"] == ["/workspace/d/y"]


def test_stats_have_the_numbers_the_published_client_reads(seen):
    assert seen["stats"] == [True, True]


def test_workspaces_outlive_sessions_and_are_deleted(seen):
    assert seen["workspace_id"] == "compat-space"
    assert seen["kept"] == "still here"
    assert (seen["workspaces"], seen["deleted"]) == (["compat-space"], [])


def test_failures_have_the_status_and_code_the_published_client_knows(seen):
    assert seen["missing"] == [404, "FILE_NOT_FOUND"]
    assert seen["unknown"] == [404, "SESSION_NOT_FOUND"]
    assert seen["gone"] in ([404, "SESSION_NOT_FOUND"], [410, "SESSION_EXPIRED"])
    assert seen["stranger"] == [401, "UNAUTHORIZED"]
