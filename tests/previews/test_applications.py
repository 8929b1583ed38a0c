"""Applications of people in a browser, each on the origin of its preview."""

from __future__ import annotations

import asyncio

import pytest

from sandkasten import AsyncSandbox
from tests import environments
from tests.previews.conftest import LIMITS, listening, put_tree
from tests.previews.sites import FLASK, STREAMLIT, VITE

pytestmark = [
    pytest.mark.promise("P78"),
    pytest.mark.long(reason="it installs Vite, JupyterLab and Streamlit and starts a browser"),
    pytest.mark.timeout(600),
]


@pytest.fixture(scope="module")
def packages():
    """Python packages of the servers."""
    python = environments.previews()
    return next(python.parents[1].glob("lib/python3*/site-packages"))


async def test_vite_serves_modules_and_reloads_them_while_the_page_stays(box, browser):
    await put_tree(box, await asyncio.to_thread(environments.vite), "/workspace")
    for name, content in VITE.items():
        await box.write(f"/workspace/{name}", content)
    await listening(box, ["node", "node_modules/vite/bin/vite.js"], 5173)
    async with browser.page(await box.url(5173)) as page:
        assert await page.until("document.body.dataset.value") == "one"
        assert await page.until("document.body.dataset.data") == "from an absolute path"
        assert await page.run("getComputedStyle(document.body).color") == "rgb(1, 2, 3)"
        await page.run("window.kept = 'kept'")
        await page.until("window.connected === true")
        await box.write("/workspace/src/value.js", VITE["src/value.js"].replace("one", "two"))
        assert await page.until("document.body.dataset.value === 'two' && 'two'") == "two"
        assert await page.run("window.kept") == "kept"


async def test_flask_has_websockets_cookies_and_storage(box, browser, packages):
    await put_tree(box, packages, "/workspace/packages")
    await box.write("/workspace/app.py", FLASK)
    options = {"env": {"PYTHONPATH": "/workspace/packages"}}
    await listening(box, ["python3", "app.py"], 5000, **options)
    url = await box.url(5000)
    async with browser.page() as page:
        # Private until the link was opened.
        await page.open(url.partition("?")[0])
        assert "sandkasten url" in await page.run("document.body.innerText")
        await page.open(url)
        assert await page.run("location.href") == url.partition("?")[0]
        assert await page.run("localStorage.getItem('visits')") == "1"
        assert await page.until("window.echoed") == "hello over a websocket"
        # A redirect of the server to an address it built, after a form.
        await page.run("document.forms[0].submit()")
        assert await page.until("document.getElementById('name')?.textContent") == "Ada"
        assert await page.run("localStorage.getItem('visits')") == "2"
        assert await page.run("document.cookie") == "seen=yes"
        assert await page.run("fetch('/headers').then(r => r.text())") == "seen=yes; session=Ada"
    cookies = {}
    async with browser.page(url) as page:
        for one in await page.cookies():
            cookies[one["name"]] = (one["httpOnly"], one["domain"])
    host = url.split("/")[2].partition(":")[0]
    assert cookies["sandkasten_preview"] == (True, host)
    assert set(cookies) == {"sandkasten_preview", "seen", "session"}


async def test_streamlit_runs_its_script_again_over_its_websocket(daemon, browser):
    python = await asyncio.to_thread(environments.streamlit)
    packages = next(python.parents[1].glob("lib/python3*/site-packages"))
    async with AsyncSandbox(**daemon.where, limits={**LIMITS, "workspace_mb": 1500}) as box:
        await put_tree(box, packages, "/workspace/packages")
        await box.write("/workspace/app.py", STREAMLIT)
        options = {"env": {"PYTHONPATH": "/workspace/packages", "HOME": "/workspace"}}
        flags = ["--server.headless=true", "--server.port=8501", "--browser.gatherUsageStats=false",
                 # It takes a package outside of site-packages for its own sources.
                 "--global.developmentMode=false"]  # fmt: skip
        command = ["python3", "-m", "streamlit", "run", "app.py", *flags]
        await listening(box, command, 8501, **options)
        found = "[...document.querySelectorAll('button')].find(one => one.innerText === 'Greet')"
        async with browser.page(await box.url(8501)) as page:
            await page.until(f"{found} !== undefined")
            await page.run(f"{found}.click()")
            await page.until("document.body.innerText.includes('Hello Ada')")


async def test_a_public_preview_opens_without_a_link_and_closes_again(box, browser):
    await box.write("/workspace/index.html", "<p>open to all</p>")
    await listening(box, ["python3", "-m", "http.server", "8000"], 8000)
    async with browser.page() as page:
        for public, shown in ((None, "private"), (True, "open to all"), (False, "private")):
            url = await box.url(8000, public=public)
            await page.open(url.partition("?")[0])
            assert shown in await page.run("document.body.innerText")
            assert await page.cookies() == []


_KERNEL = """(async () => {
  const xsrf = document.cookie.match(/_xsrf=([^;]+)/)[1];
  const made = await fetch('/api/kernels', {method: 'POST', headers: {'X-XSRFToken': xsrf},
                                            body: JSON.stringify({name: 'python3'})});
  const kernel = await made.json();
  const socket = new WebSocket(`ws://${location.host}/api/kernels/${kernel.id}/channels`);
  await new Promise((done, failed) => { socket.onopen = done; socket.onerror = failed; });
  const header = {msg_id: 'm', username: '', session: 's', msg_type: 'execute_request',
                  version: '5.3', date: new Date().toISOString()};
  socket.send(JSON.stringify({header, parent_header: {}, metadata: {}, channel: 'shell',
    content: {code: '6 * 7', silent: false, store_history: true, user_expressions: {},
              allow_stdin: false}}));
  return await new Promise(done => { socket.onmessage = told => {
    const message = JSON.parse(told.data);
    if (message.msg_type === 'execute_result') done(message.content.data['text/plain']);
  }; });
})()"""


async def test_jupyterlab_opens_and_its_kernel_answers(box, browser, packages):
    root = packages.parents[2]
    await put_tree(box, packages, "/workspace/packages")
    await put_tree(box, root / "share", "/workspace/share")
    options = {
        "env": {
            "PYTHONPATH": "/workspace/packages",
            "JUPYTER_PATH": "/workspace/share/jupyter",
            "HOME": "/workspace",
        }
    }
    flags = [
        "--no-browser", "--port=8888", "--IdentityProvider.token=",
        "--ServerApp.allow_remote_access=True",
        "--LabServerApp.app_settings_dir=/workspace/settings",
        "--LabApp.app_dir=/workspace/share/jupyter/lab",
    ]  # fmt: skip
    await listening(box, ["python3", "-m", "jupyterlab", *flags], 8888, **options)
    async with browser.page(await box.url(8888)) as page:
        await page.until("location.pathname === '/lab'")
        await page.until("document.querySelector('.jp-Launcher') !== null")
        assert await page.run(_KERNEL) == "42"
