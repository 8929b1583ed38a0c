"""File errors are Python's own exceptions too, in process and over HTTP."""

from __future__ import annotations

import copy
import errno
import json
import pickle

import pytest

import sandkasten
from sandkasten import Sandbox
from sandkasten.client.http.error_responses import error_of

PAIRS = [
    (sandkasten.FileNotFound, FileNotFoundError, errno.ENOENT),
    (sandkasten.FileExists, FileExistsError, errno.EEXIST),
    (sandkasten.NotADirectory, NotADirectoryError, errno.ENOTDIR),
    (sandkasten.IsADirectory, IsADirectoryError, errno.EISDIR),
    (sandkasten.FilePermission, PermissionError, errno.EACCES),
]


@pytest.fixture(params=["embedded", "daemon"])
def box(request, served):
    with Sandbox(**(served.where if request.param == "daemon" else {})) as made:
        yield made


@pytest.mark.promise("P36")
@pytest.mark.parametrize(("ours", "theirs", "number"), PAIRS)
def test_a_file_error_is_pythons_own_and_survives_pickle_and_http(ours, theirs, number):
    told = {"code": ours.code, "message": "m", "hint": "h", "details": {"path": "/workspace/x"}}
    for error in (
        ours("m", hint="h", path="/workspace/x"),
        error_of(500, json.dumps(told).encode()),
        pickle.loads(pickle.dumps(ours("m", hint="h", path="/workspace/x"))),
        copy.copy(ours("m", hint="h", path="/workspace/x")),
    ):
        assert type(error) is ours
        assert isinstance(error, theirs)
        assert (error.errno, error.filename) == (number, "/workspace/x")
        assert (error.message, error.hint, str(error)) == ("m", "h", "m (hint: h)")
        assert repr(error) == f"{ours.__name__}('m')"
    assert ours("m").filename is None


@pytest.mark.promise("P36")
def test_except_clauses_for_local_files_work_for_a_sandbox(box, tmp_path):
    box.write("file", b"x")
    box.mkdir("dir")
    with pytest.raises(FileNotFoundError) as caught:
        box.read("nothing")
    assert (caught.value.errno, caught.value.filename) == (errno.ENOENT, "/workspace/nothing")
    with pytest.raises(IsADirectoryError) as found:
        box.read("dir")
    assert found.value.filename in ("dir", "/workspace/dir")
    with pytest.raises(NotADirectoryError):
        box.read("file/x")
    with pytest.raises(FileExistsError):
        box.write("file", b"y", overwrite=False)
    # Around a transfer, where OSError means a local file.
    with pytest.raises(sandkasten.NotADirectory):
        box.upload(__file__, "file/x")
    with pytest.raises(sandkasten.FileNotFound):
        box.download("nothing", tmp_path / "x")


def test_an_error_in_a_watch_does_not_look_like_a_broken_connection(box):
    with pytest.raises(sandkasten.FileNotFound):
        next(iter(box.watch("nothing")))
