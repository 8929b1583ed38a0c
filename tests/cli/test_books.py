"""Keys, the audit and stored files on the command line: without a daemon and through one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from tests.client.http.served import served

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture(params=["alone", "through a daemon"])
def run(request, tmp_path) -> Iterator[Callable[..., subprocess.CompletedProcess[bytes]]]:
    data_dir = tmp_path / "data"
    kept = {k: v for k, v in os.environ.items() if not k.startswith("SANDKASTEN_")}

    def one(*words: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        command = [sys.executable, "-m", "sandkasten.cli", "--data-dir", str(data_dir)]
        return subprocess.run(
            [*command, "--backend", "memory", *words],
            input=stdin,
            capture_output=True,
            env=kept,
            timeout=60,
            check=False,
        )

    with ExitStack() as stack:
        if request.param != "alone":
            stack.enter_context(served(data_dir))
        yield one


def told(done: subprocess.CompletedProcess[bytes]):
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_key_is_printed_once_listed_without_it_and_revoked(run):
    made = run("key", "create", "-t", "acme", "-n", "ci", "--max-memory", "2G", "--expires", "1d")
    assert made.returncode == 0, made.stderr
    key = made.stdout.decode().strip()
    assert key.startswith("sk-")
    assert b"not shown again" in made.stderr
    (row,) = told(run("key", "ls", "--json"))
    assert (row["tenant"], row["name"], row["revoked_at"]) == ("acme", "ci", None)
    assert row["quota"]["max_memory_bytes"] == 2 << 30
    assert row["expires_at"] - row["created_at"] == pytest.approx(86_400)
    assert key not in str(row)
    listed = run("key", "ls").stdout.decode()
    assert "lives" in listed
    gone = run("key", "revoke", row["id"], "key_000000000000", "--json")
    assert gone.returncode == 125
    body = json.loads(gone.stdout)
    assert [one["id"] for one in body["revoked"]] == [row["id"]]
    assert [one["code"] for one in body["failed"]] == ["NOT_FOUND"]
    actions = [one["action"] for one in told(run("audit", "ls", "--json"))]
    assert actions[:2] == ["key.create", "key.revoke"]
    assert b"key.revoke" in run("audit", "ls", "--action", "key.revoke").stdout


def test_a_scope_that_is_none_is_told_with_a_hint(run):
    done = run("key", "create", "--scope", "session")
    assert (done.returncode, done.stdout) == (125, b"")
    assert b"hint: did you mean sessions?" in done.stderr


def test_a_file_goes_into_the_store_and_out_again(run, tmp_path):
    data = os.urandom(500_000)
    (tmp_path / "report.png").write_bytes(data)
    key = run("files", "put", str(tmp_path / "report.png")).stdout.decode().strip()
    assert key.startswith("f_")
    named = told(
        run("files", "put", "-", "--key", "runs/1/x", "--ttl", "1h", "--json", stdin=b"hi")
    )
    assert (named["key"], named["size_bytes"]) == ("runs/1/x", 2)
    assert run("files", "get", "runs/1/x").stdout == b"hi"
    assert run("files", "get", key, str(tmp_path / "back")).returncode == 0
    assert (tmp_path / "back").read_bytes() == data
    info = told(run("files", "info", key, "--json"))
    assert (info["content_type"], info["size_bytes"]) == ("image/png", len(data))
    assert [one["key"] for one in told(run("files", "ls", "runs/", "--json"))] == ["runs/1/x"]
    taken = run("files", "put", "-", "--key", "runs/1/x", stdin=b"other")
    assert taken.returncode == 125
    assert run("files", "put", "-", "--key", "runs/1/x", "--overwrite", stdin=b"x").returncode == 0
    gone = run("files", "rm", key, "runs/1/x", "nothing", "--json")
    assert json.loads(gone.stdout)["removed"] == [key, "runs/1/x"]
    missing = run("files", "info", key)
    assert (missing.returncode, missing.stdout) == (125, b"")
    assert b"there is no stored file" in missing.stderr
    assert run("files", "ls").stdout.split()[0] == b"KEY"


def test_books_in_use_are_not_opened_twice(tmp_path, monkeypatch):
    with served(tmp_path / "data"):
        done = subprocess.run(
            [
                *(sys.executable, "-m", "sandkasten.cli", "--data-dir", str(tmp_path / "data")),
                *("--backend", "memory", "--embedded", "key", "ls"),
            ],
            capture_output=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 125
    assert b"another daemon" in done.stderr
