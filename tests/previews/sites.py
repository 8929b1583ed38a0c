"""The sources of the applications that the browser opens."""

from __future__ import annotations

from typing import Final

VITE: Final = {
    "index.html": '<!doctype html><body><script type="module" src="/src/main.js"></script></body>',
    "public/data.json": '{"text": "from an absolute path"}',
    "src/style.css": "body { color: rgb(1, 2, 3) }",
    "src/value.js": "export const value = 'one'",
    "src/main.js": """
import './style.css'
import { value } from '/src/value.js'

document.body.dataset.value = value
const found = await fetch('/data.json')
document.body.dataset.data = (await found.json()).text
import.meta.hot.accept('./value.js', (next) => { document.body.dataset.value = next.value })
window.connected = true
""",
}

FLASK: Final = """
from flask import Flask, redirect, request, url_for
from flask_sock import Sock

app = Flask(__name__)
sock = Sock(app)


@app.get("/")
def home():
    name = request.cookies.get("session", "")
    page = f'''<!doctype html><p id="name">{name}</p>
<form method="post" action="{url_for("enter", _external=True)}">
<input name="name" value="Ada"></form>
<script>
localStorage.setItem('visits', Number(localStorage.getItem('visits') || 0) + 1)
document.cookie = 'seen=yes'
const socket = new WebSocket('{url_for("home", _external=True).replace("http", "ws")}echo')
socket.onopen = () => socket.send('hello over a websocket')
socket.onmessage = told => {{ window.echoed = told.data }}
</script>'''
    return page


@app.post("/enter")
def enter():
    answer = redirect(url_for("home", _external=True))
    answer.set_cookie("session", request.form["name"], httponly=True)
    return answer


@app.get("/headers")
def headers():
    return request.headers.get("Cookie", "")


@sock.route("/echo")
def echo(socket):
    while True:
        socket.send(socket.receive())


app.run(port=5000)
"""

STREAMLIT: Final = """
import streamlit

name = streamlit.text_input("Name", "Ada")
if streamlit.button("Greet"):
    streamlit.write(f"Hello {name}")
"""

# A site with a secret that sends no CORS headers, in each form that a page of another origin
# could load it.
VICTIM: Final = """
import http.server
import sys

CHANGES = []
PAGES = {
    "/secret": ("text/html", "SECRET_TEXT"),
    "/secret.js": ("text/javascript", "window.SECRET = 'SECRET_TEXT'"),
    "/picture.svg": ("image/svg+xml", '<svg xmlns="http://www.w3.org/2000/svg"/>'),
}


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        if self.headers.get("Upgrade") == "websocket":
            return self.shake_hands()
        kind, text = PAGES.get(self.path, ("text/html", "page of SECRET_TEXT"))
        if self.path == "/changes":
            text = str(len(CHANGES))
        self.answer(kind, text)

    def do_POST(self):
        CHANGES.append(self.path)
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.answer("text/html", "changed")

    def answer(self, kind, text):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def shake_hands(self):
        import base64
        import hashlib

        key = self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        accept = base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        self.send_header("Sec-WebSocket-Accept", accept)
        self.end_headers()
        self.rfile.read(1)


http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
