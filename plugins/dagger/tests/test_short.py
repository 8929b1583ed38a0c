"""The part of these tests that `make test` runs too, if `make test-dagger` ran here before.

Without its programs it is skipped, and the reason says what makes them: compiling the engine takes
longer than all of `make test`.
"""

from __future__ import annotations

import pytest

from plugins.dagger.tests import site
from sandkasten.model.sandbox.oneshot_values import RunRequest
from sandkasten.model.sandbox.sandbox_options import SandboxOptions
from tests import environments, imagekit
from tests.platform_choice import LONG

pytestmark = [pytest.mark.anyio, pytest.mark.promise("P114"), pytest.mark.timeout(600)]


@pytest.fixture(autouse=True)
def _installed() -> None:
    library = environments.ROOT / "build" / "dagger-venv"
    if not LONG and not library.exists():
        pytest.skip("not installed: build/dagger-venv (make test-dagger)")


async def test_one_shots_on_a_real_engine_have_their_files_exit_codes_and_no_network(
    dagger_none, tmp_path
):
    async with site.opened(
        tmp_path / "data", archive=imagekit.busybox_tar(), dagger_engines_none=dagger_none.address
    ) as engine:
        result = await engine.run(
            RunRequest(
                'cat /work/in.txt; echo "$1" "$WHO" >out.txt; wc -l </proc/net/route; kill -9 $$',
                runtime="sh",
                args=("one",),
                files={"in.txt": "text\n"},
                artifacts=("out.txt",),
                options=SandboxOptions(env={"WHO": "me"}),
            )
        )
        assert (result.backend, result.signal, result.ok) == ("dagger", 9, False)
        # The head of the table, and the route to nothing.
        assert result.stdout == b"text\n2\n"
        assert [artifact.data for artifact in result.artifacts] == [b"one me\n"]
        late = await engine.run(RunRequest("sleep 100 & sleep 100", "sh", timeout_seconds=1))
        assert late.timed_out
        assert await engine.list(all=True) == []
