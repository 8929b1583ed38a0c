"""A page of a sandbox that tries to reach the daemon's API and other previews, in a browser."""

from __future__ import annotations

import json

import pytest

from tests.client.http.served import served
from tests.previews.conftest import listening, sandbox
from tests.previews.sites import VICTIM

pytestmark = [
    pytest.mark.promise("P78"),
    pytest.mark.long(reason="it starts a browser"),
    pytest.mark.timeout(300),
]

# Each attempt returns what it got: "refused" if the browser or the daemon did not let it.
ATTEMPTS = """
const attempt = async (name, action) => {
  try { told[name] = await action(); } catch (error) { told[name] = 'refused'; }
};
const framed = (address) => new Promise(done => {
  const frame = document.createElement('iframe');
  frame.onload = () => {
    try { done(frame.contentDocument ? frame.contentDocument.body.innerText : 'refused'); }
    catch (error) { done('refused'); }
  };
  frame.src = address;
  document.body.append(frame);
});
const loaded = (kind, address) => new Promise(done => {
  const element = document.createElement(kind);
  element.onload = () => done(kind === 'script' ? String(window.SECRET) : 'loaded');
  element.onerror = () => done('refused');
  element.src = address;
  document.body.append(element);
});
const socket = (address) => new Promise(done => {
  const one = new WebSocket(address);
  one.onopen = () => done('open');
  one.onerror = () => done('refused');
});
// A form whose answer goes to a frame; that it was sent is all a page learns.
const post = (address, kind) => new Promise(done => {
  const frame = document.createElement('iframe');
  frame.name = 'of' + Math.random();
  document.body.append(frame);
  const form = document.createElement('form');
  Object.assign(form, {method: 'post', action: address, target: frame.name, enctype: kind});
  const field = document.createElement('input');
  field.name = '{"labels": {"by": "page"}, "x';
  field.value = '": 1}';
  form.append(field);
  document.body.append(form);
  frame.onload = () => done('sent');
  form.submit();
});
"""
ON_API = """(async () => {
  const told = {};
  %(attempts)s
  const api = %(api)s, ws = api.replace('http', 'ws'), id = %(id)s, headers = {};
  await attempt('read', () => fetch(api + '/v1/sessions').then(r => r.text()));
  await attempt('health', () => fetch(api + '/healthz').then(r => r.text()));
  await attempt('credentials', () => fetch(api + '/v1/sessions', {credentials: 'include'})
                                       .then(r => r.text()));
  await attempt('json', () => fetch(api + '/v1/sessions', {method: 'POST', body: '{}',
      headers: {'Content-Type': 'application/json'}}).then(r => r.text()));
  await attempt('opaque', () => fetch(api + '/v1/sessions', {method: 'POST', mode: 'no-cors',
      body: '{"labels": {"by": "page"}}'}).then(r => r.type));
  await attempt('beacon', () => navigator.sendBeacon(api + '/v1/sessions',
                                                     '{"labels": {"by": "page"}}') && 'sent');
  await attempt('form', () => post(api + '/v1/sessions', 'text/plain'));
  await attempt('script', () => loaded('script', api + '/openapi.json'));
  await attempt('image', () => loaded('img', api + '/v1/sessions/' + id));
  await attempt('frame', () => framed(api + '/v1/sessions'));
  await attempt('terminal', () => socket(ws + '/v1/sessions/' + id + '/pty'));
  await attempt('tunnel', () => socket(ws + '/v1/sessions/' + id + '/tunnels/8000'));
  await attempt('own', () => fetch('/v1/sessions').then(r => r.text()));
  return told;
})()"""
ON_OTHER = """(async () => {
  const told = {};
  %(attempts)s
  const other = %(other)s, ws = other.replace('http', 'ws');
  await attempt('read', () => fetch(other + '/secret').then(r => r.text()));
  await attempt('credentials', () => fetch(other + '/secret', {credentials: 'include'})
                                       .then(r => r.text()));
  await attempt('opaque', () => fetch(other + '/change', {method: 'POST', mode: 'no-cors',
      credentials: 'include', body: 'x'}).then(r => r.type));
  await attempt('beacon', () => navigator.sendBeacon(other + '/change', 'x') && 'sent');
  await attempt('form', () => post(other + '/change', 'text/plain'));
  await attempt('script', () => loaded('script', other + '/secret.js'));
  await attempt('image', () => loaded('img', other + '/picture.svg'));
  await attempt('frame', () => framed(other + '/secret'));
  await attempt('socket', () => socket(ws + '/socket'));
  await attempt('window', async () => {
    const one = window.open(other + '/secret');
    for (let at = 0; at < 20; at++) {
      await new Promise(done => setTimeout(done, 100));
      try { if (one.document.body.innerText) return one.document.body.innerText; } catch (e) {}
    }
    try { one.localStorage.getItem('secret'); } catch (error) { return 'refused'; }
    return 'no page';
  });
  await attempt('storage', () => String(localStorage.getItem('secret')));
  await attempt('databases', async () => String((await indexedDB.databases()).length));
  await attempt('caches', async () => String((await caches.keys()).length));
  await attempt('cookies', () => document.cookie);
  await attempt('worker', () => navigator.serviceWorker.register(other + '/secret.js')
                                  .then(() => 'registered'));
  document.cookie = 'sandkasten_preview=1.x; domain=localhost; path=/';
  for (let at = 0; at < 400; at++) document.cookie = `c${at}=${'x'.repeat(500)}; domain=localhost`;
  await attempt('cookies of all', () => document.cookie);
  await attempt('token', () => performance.getEntriesByType('navigation').map(one => one.name)
                                   .join().match(/token/) ?? document.referrer);
  return told;
})()"""


def origin(url):
    return "/".join(url.split("/")[:3])


async def serve(box, port, secret):
    await box.write("/workspace/victim.py", VICTIM.replace("SECRET_TEXT", secret))
    await listening(box, ["python3", "victim.py", str(port)], port)


@pytest.fixture(params=[True, False], ids=["key", "trusted-loopback"])
def reached(request, tmp_path):
    """A daemon, and how a client reaches it: with its key, or without one on loopback."""
    environ = {} if request.param else {"SANDKASTEN_API_KEY": ""}
    with served(tmp_path / "data", **environ) as daemon:
        yield daemon.where if request.param else {"url": daemon.url}


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
async def test_a_page_does_not_reach_the_api(browser, reached, name):
    async with sandbox(reached) as box:
        await serve(box, 8000, "mine")
        api = reached["url"].replace("127.0.0.1", name)
        values = {"attempts": ATTEMPTS, "api": json.dumps(api), "id": json.dumps(box.id)}
        async with browser.page(await box.url(8000)) as page:
            told = await page.run(ON_API % values)
        assert [one.id for one in await type(box).list(**reached)] == [box.id]
        assert len(await box.execs()) == 1
    # The browser sends these three and says no more; that nothing came of them is seen above.
    sent = {"opaque": told["opaque"], "beacon": "sent", "form": "sent", "own": "page of mine"}
    assert told == {**dict.fromkeys(told, "refused"), **sent}


@pytest.mark.parametrize("public", [None, True], ids=["private", "public"])
async def test_a_page_does_not_reach_another_preview(browser, daemon, public):
    """Of another sandbox, which the browser has opened before and has the cookie of."""
    async with sandbox(daemon.where) as box, sandbox(daemon.where) as other:
        await serve(box, 8000, "mine")
        await serve(other, 8000, "theirs")
        link = await other.url(8000)
        async with browser.page(link) as victim:
            await victim.run("localStorage.setItem('secret', 'theirs')")
            await victim.run("indexedDB.open('theirs') && caches.open('theirs').then(() => 1)")
            values = {"attempts": ATTEMPTS, "other": json.dumps(origin(link))}
            async with browser.page(await box.url(8000, public=public)) as page:
                told = await page.run(ON_OTHER % values)
            await victim.open(origin(link) + "/secret")
            assert await victim.run("document.body.innerText") == "theirs"
            assert await victim.run("fetch('/changes').then(r => r.text())") == "0"
            assert await victim.run("document.cookie") == ""
    expected = dict.fromkeys(told, "refused")
    expected |= {"opaque": told["opaque"], "beacon": "sent", "form": "sent"}
    expected |= {"storage": "null", "databases": "0", "caches": "0", "cookies": ""}
    expected |= {"cookies of all": "", "token": ""}
    assert told == expected


async def test_two_ports_of_one_sandbox_are_two_origins(browser, box):
    await serve(box, 8000, "one")
    await serve(box, 8001, "two")
    link = await box.url(8001)
    async with browser.page(link), browser.page(await box.url(8000)) as page:
        values = {"attempts": ATTEMPTS, "other": json.dumps(origin(link))}
        told = await page.run(ON_OTHER % values)
        assert await page.run("document.body.innerText") == "page of one"
    assert {told[name] for name in ("read", "credentials", "frame", "window", "socket")} == {
        "refused"
    }


async def test_the_same_attempts_reach_a_public_preview(browser, daemon):
    """Those that a browser lets pages of other origins do: the attempts above are real ones."""
    async with sandbox(daemon.where) as box, sandbox(daemon.where) as other:
        await serve(box, 8000, "mine")
        await serve(other, 8000, "theirs")
        link = await other.url(8000, public=True)
        values = {"attempts": ATTEMPTS, "other": json.dumps(origin(link))}
        async with browser.page(await box.url(8000)) as page:
            told = await page.run(ON_OTHER % values)
            await page.open(link + "changes")
            assert await page.run("document.body.innerText") == "3"
    reached = {"opaque": "opaque", "script": "theirs", "image": "loaded", "socket": "open"}
    assert {name: told[name] for name in reached} == reached
    hidden = ("read", "credentials", "frame", "window", "worker")
    assert {told[name] for name in hidden} == {"refused"}
