"""Real programs in sandboxes and real servers outside: each works without any configuration of a
network.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.network.servers import HOSTS, PSQL, servers
from tests.platform_choice import LONG
from tests.shared_sandbox_cases import few

pytestmark = [pytest.mark.root, pytest.mark.promise("P75")]

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "network.md"
ALL = ("apt", "curl", "git", "npm", "pip", "psql", "ssh")
# The image that tests use on Docker has no npm, no pip, and no user for ssh.
PROGRAMS = {"local": ALL, "oci": ALL, "gvisor": ALL, "docker": ("apt", "curl", "git", "psql")}
# The rest runs in `make test-long`: these cost least, and one of them speaks TLS.
CHEAP = ("curl", "git", "psql", "ssh")


def apt_commands(repository: str) -> str:
    return _APT.replace("REPOSITORY", repository)


_APT = (
    "mkdir -p apt/lists/partial apt/cache/archives/partial && touch apt/status && "
    "echo 'deb [trusted=yes] REPOSITORY ./' > apt/list && "
    "apt='apt-get -q -o Dir::State=$PWD/apt -o Dir::State::status=$PWD/apt/status "
    "-o Dir::Cache=$PWD/apt/cache -o Dir::Etc::sourcelist=$PWD/apt/list "
    "-o Dir::Etc::sourceparts=/dev/null -o Dir::Etc::preferencesparts=/dev/null' && "
    "eval $apt update && eval $apt download tiny && dpkg-deb --fsys-tarfile tiny_*.deb | "
    "tar -xO ./usr/share/tiny/text"
)
COMMANDS = {
    "apt": apt_commands("http://deb.test:{plain}/deb"),
    "curl": "curl -sS --cacert ca.pem https://git.test:{secure}/repository.git/HEAD > head && "
    "grep -q refs/heads head && echo tiny",
    "git": "GIT_SSL_CAINFO=$PWD/ca.pem git clone -q https://git.test:{secure}/repository.git && "
    "cat repository/text",
    "npm": "npm install --no-audit --no-fund --cafile ca.pem --prefix js "
    "--registry https://npm.test:{secure}/ tiny && "
    "node -e 'console.log(require(\"./js/node_modules/tiny\"))'",
    "pip": "python3 -m pip install -q --disable-pip-version-check --cert ca.pem --target py "
    "--index-url https://pypi.test:{secure}/simple/ tiny && "
    'PYTHONPATH=py python3 -c \'print("tiny" if __import__("tiny").VERSION else 0)\'',
    "psql": PSQL + " -h db.test -p {postgres} -U tiny -d postgres -Atc \"select 'tiny'\"",
    "ssh": "chmod 600 key && ssh -q -i key -o StrictHostKeyChecking=no "
    "-o UserKnownHostsFile=/dev/null -p {ssh} root@ssh.test",
}


@pytest.fixture(scope="module")
def outside():
    with servers() as found:
        yield found


@pytest.mark.parametrize("backend", few(PROGRAMS))
def test_programs_reach_their_servers(boxed, outside, monkeypatch, backend):
    monkeypatch.setenv("SANDKASTEN_NETWORK_HOSTS", ",".join(f"{h}=127.0.0.1" for h in HOSTS))
    ports = vars(outside)
    allow = [
        f"deb.test:{outside.plain}",
        *(f"{name}.test:{outside.secure}" for name in ("git", "npm", "pypi")),
        f"ssh.test:{outside.ssh}",
        f"db.test:{outside.postgres}",
    ]
    box = boxed(backend=backend, network={"allow": allow})
    box.write("ca.pem", outside.certificate)
    box.write("key", outside.key)
    asked = PROGRAMS[backend]
    if backend != "local" and not LONG:
        asked = tuple(one for one in asked if one in CHEAP)
    if shutil.which("npm", path="/usr/bin") is None:
        # Debian's npm brings hundreds of packages; a machine with another node has it.
        asked = tuple(one for one in asked if one != "npm")
    told = {}
    for name in asked:
        done = box.exec(COMMANDS[name].format(**ports), timeout_seconds=60)
        told[name] = done.output.strip().splitlines()[-1:] or done
    assert told == dict.fromkeys(asked, ["tiny"])
    assert [one for one in box.network_log() if one.event == "refused"] == []


def test_the_guide_lists_the_programs_that_are_tested():
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \|$", GUIDE.read_text(), re.MULTILINE)
    found = {name: tuple(re.findall(r"`(\w+)`", listed)) for name, listed in rows}
    assert {name: found.get(name) for name in PROGRAMS} == PROGRAMS
