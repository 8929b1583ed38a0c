"""`sandbox_code` in a real sandbox."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.promise("P80")


async def test_variables_stay_and_pictures_are_files_of_the_workspace(tools):
    first = await tools.call("code", code="x = 20\nprint('hi')")
    assert (first["status"], first["stdout"], first["error"]) == ("ok", "hi\n", None)
    code = "display({'image/png': 'iVBORw0K', 'text/plain': 'chart'}, raw=True); x + 1"
    second = await tools.call("code", code=code)
    assert second["text"] == "21"
    picture, value = second["results"]
    [file] = picture["files"]
    assert (picture["text"], value) == ("chart", {"text": "21"})
    read = await tools.call("fs_read", path=file["path"])
    assert read["content_base64"] == "iVBORw0K"
    failed = await tools.call("code", code="1 / 0")
    assert (failed["status"], failed["error"]["name"]) == ("error", "ZeroDivisionError")
    unknown = await tools.call("code", code="1", language="klingon")
    assert (unknown["ok"], unknown["code"]) == (False, "KERNEL_NOT_FOUND")
