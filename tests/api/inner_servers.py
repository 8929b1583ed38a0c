"""Programs that listen inside a sandbox, with nothing but Python's own library."""

from __future__ import annotations

PLAIN = """
import http.server, json, sys
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def answer(self):
        size = int(self.headers.get("content-length") or 0)
        body = self.rfile.read(size)
        if self.path.startswith("/redirect"):
            self.send_response(302)
            self.send_header("Location", "/there")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if self.path.startswith("/large"):
            data = b"x" * 5_000_000
        else:
            told = {"method": self.command, "path": self.path, "size": len(body),
                    "headers": {k.lower(): v for k, v in self.headers.items()}}
            data = json.dumps(told).encode()
        self.send_response(200)
        self.send_header("Set-Cookie", "a=b")
        self.send_header("Access-Control-Allow-Origin", "*")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
    do_GET = do_POST = do_PUT = do_DELETE = answer
    def log_message(self, *a): pass
http.server.ThreadingHTTPServer(("127.0.0.1", 8000), Handler).serve_forever()
"""

ECHO = """
import base64, hashlib, socket, struct
server = socket.create_server(("127.0.0.1", 8001))
def exact(sock, n):
    data = b""
    while len(data) < n:
        piece = sock.recv(n - len(data))
        if not piece: raise SystemExit
        data += piece
    return data
while True:
    sock, _ = server.accept()
    head = b""
    while b"\\r\\n\\r\\n" not in head: head += sock.recv(1)
    fields = dict(l.split(": ", 1) for l in head.decode().split("\\r\\n")[1:] if ": " in l)
    key = {k.lower(): v for k, v in fields.items()}["sec-websocket-key"]
    accept = base64.b64encode(hashlib.sha1(
        (key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").encode()).digest()).decode()
    sock.sendall(("HTTP/1.1 101 Switching Protocols\\r\\nUpgrade: websocket\\r\\n"
        f"Connection: Upgrade\\r\\nSec-WebSocket-Accept: {accept}\\r\\n\\r\\n").encode())
    while True:
        first, second = exact(sock, 2)
        size = second & 127
        if size == 126: size = struct.unpack(">H", exact(sock, 2))[0]
        elif size == 127: size = struct.unpack(">Q", exact(sock, 8))[0]
        mask = exact(sock, 4)
        data = bytes(b ^ mask[i % 4] for i, b in enumerate(exact(sock, size)))
        kind = first & 15
        if kind == 8:
            sock.sendall(bytes([0x88, len(data)]) + data)
            sock.close()
            break
        out = bytes([first])
        if len(data) < 126: out += bytes([len(data)])
        elif len(data) < 65536: out += bytes([126]) + struct.pack(">H", len(data))
        else: out += bytes([127]) + struct.pack(">Q", len(data))
        sock.sendall(out + data)
"""

GARBAGE = """
import socket
server = socket.create_server(("127.0.0.1", 8002))
while True:
    sock, _ = server.accept()
    sock.recv(65536)
    sock.sendall(b"\\x00\\x01 this is no HTTP\\r\\n\\r\\n")
    sock.close()
"""

# Answers byte for byte what it is asked for in base64; `/quiet` begins an answer and never ends it,
# `/never` begins none, `/interim` only ever promises one.
HOSTILE = """
import base64, socket, threading, time
server = socket.create_server(("127.0.0.1", 8003), backlog=200)
def serve(sock):
    head = b""
    while b"\\r\\n\\r\\n" not in head:
        piece = sock.recv(65536)
        if not piece: return
        head += piece
    path = head.split(b" ")[1].decode()
    try:
        if path == "/quiet":
            sock.sendall(b"HTTP/1.1 200 OK\\r\\n\\r\\n.")
        elif path == "/interim":
            while True: sock.sendall(b"HTTP/1.1 100 Continue\\r\\n\\r\\n" * 1000)
        elif path == "/noise":
            while True: sock.sendall(b"x" * 65536)
        elif path.startswith("/say/"):
            sock.sendall(base64.urlsafe_b64decode(path[5:]))
            sock.close()
            return
        elif path != "/never":
            sock.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: %d\\r\\n\\r\\n" % len(path))
            sock.sendall(path.encode())
            sock.close()
            return
        sock.recv(1)
    except OSError:
        pass
    sock.close()
while True:
    sock, _ = server.accept()
    threading.Thread(target=serve, args=(sock,), daemon=True).start()
"""

# One message in a hundred thousand empty frames around two that are not.
FRAGMENTS = """
import base64, hashlib, socket
server = socket.create_server(("127.0.0.1", 8004))
while True:
    sock, _ = server.accept()
    head = b""
    while b"\\r\\n\\r\\n" not in head: head += sock.recv(65536) or b"\\r\\n\\r\\n"
    fields = dict(l.split(": ", 1) for l in head.decode().split("\\r\\n")[1:] if ": " in l)
    key = {k.lower(): v for k, v in fields.items()}.get("sec-websocket-key", "")
    accept = base64.b64encode(hashlib.sha1(
        (key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").encode()).digest()).decode()
    try:
        # In one piece: the first frame comes with the answer.
        sock.sendall(("HTTP/1.1 101 Switching Protocols\\r\\nUpgrade: websocket\\r\\n"
            f"Connection: Upgrade\\r\\nSec-WebSocket-Accept: {accept}\\r\\n\\r\\n").encode()
            + b"\\x02\\x01a" + b"\\x00\\x00" * 100000 + b"\\x80\\x01b")
        sock.recv(1)
    except OSError:
        pass
    sock.close()
"""

# As an application sees a browser: tells what it was asked, sets cookies, streams, has a WebSocket.
APPLICATION = """
import base64, hashlib, http.server, json, threading, urllib.parse
go_on = threading.Event()
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def answer(self):
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        seen = {k.lower(): v for k, v in self.headers.items()}
        parts = urllib.parse.urlsplit(self.path)
        status, headers = 200, []
        told = {"method": self.command, "path": self.path, "size": len(body), "headers": seen}
        data = json.dumps(told).encode()
        if parts.path == "/ws":
            return self.websocket(seen)
        if parts.path == "/pieces":
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.write(b"5\\r\\nfirst\\r\\n")
            go_on.wait()
            self.wfile.write(b"6\\r\\nsecond\\r\\n0\\r\\n\\r\\n")
            return
        if parts.path == "/go-on":
            go_on.set()
        if parts.path == "/large":
            data = b"x" * 3_000_000
        if parts.path == "/headers":
            told = json.loads(urllib.parse.parse_qs(parts.query)["q"][0])
            status, headers = told["status"], told["headers"]
        self.send_response(status)
        for name, value in headers: self.send_header(name, value)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
    def websocket(self, seen):
        key = seen["sec-websocket-key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        accept = base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()
        self.send_header("Sec-WebSocket-Accept", accept)
        self.end_headers()
        data = json.dumps(seen).encode()
        self.wfile.write(bytes([0x81, 126]) + len(data).to_bytes(2, "big") + data)
        self.wfile.flush()
        while True:
            first, second = self.rfile.read(2)
            mask = self.rfile.read(4)
            data = bytes(b ^ mask[i % 4] for i, b in enumerate(self.rfile.read(second & 127)))
            self.wfile.write(bytes([first, len(data)]) + data)
            self.wfile.flush()
            if first & 15 == 8:
                self.close_connection = True
                return
    do_GET = do_POST = do_PUT = do_HEAD = answer
    def log_message(self, *a): pass
http.server.ThreadingHTTPServer(("127.0.0.1", 8000), Handler).serve_forever()
"""
