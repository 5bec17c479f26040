"""A web server on this machine that misbehaves as told, for tests of downloads."""

from __future__ import annotations

import contextlib
import http.server
import threading
from collections.abc import Callable, Iterator

# Answers a request itself, given the handler and the file's bytes.
Answer = Callable[["_Handler", bytes], object]


class WebServer:
    """What the server has, what it does wrong, and what it was asked for.

    Attributes:
      files: path -> content.
      tags: path -> entity tag; None for the hash of the content, "" for none.
      faults: path -> what to do instead, for each request in turn; afterwards it behaves.
      requests: (path, headers) of each request.
    """

    def __init__(self, address: str):
        self.address = address
        self.files: dict[str, bytes] = {}
        self.tags: dict[str, str] = {}
        self.faults: dict[str, list[Answer]] = {}
        self.requests: list[tuple[str, dict[str, str]]] = []

    def ranges(self, path: str) -> list[str | None]:
        """The Range header of each request for a file."""
        return [headers.get("Range") for asked, headers in self.requests if asked == path]


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    web: WebServer

    def do_GET(self):
        self.web.requests.append((self.path, dict(self.headers)))
        content = self.web.files.get(self.path)
        faults = self.web.faults.get(self.path)
        if faults:
            faults.pop(0)(self, content)
        elif content is None:
            status(404)(self, content)
        else:
            self.send_file(content)

    def send_file(self, content, *, length=None, body=None):
        """The file or the part that is asked for; ``length`` and ``body`` are lies."""
        tag = self.web.tags.get(self.path, f'"{hash(content)}"')
        start, code = 0, 200
        asked, condition = self.headers.get("Range"), self.headers.get("If-Range")
        if asked and condition in (None, tag):
            start, code = int(asked.removeprefix("bytes=").removesuffix("-")), 206
        if code == 206 and start >= len(content):
            status(416)(self, content)
            return
        part = content[start:] if body is None else body
        self.send_response(code)
        self.send_header("Content-Length", str(len(part) if length is None else length))
        if tag:
            self.send_header("ETag", tag)
        if code == 206:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.end_headers()
        self.wfile.write(part)

    def log_message(self, *_):
        pass


def status(code: int, **headers: str) -> Answer:
    """Answers with a status and an empty body."""

    def answer(handler, _):
        handler.send_response(code)
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    return answer


def cut_after(num_bytes: int) -> Answer:
    """Closes the connection after so many bytes of what was asked for."""

    def answer(handler, content):
        asked = handler.headers.get("Range", "bytes=0-")
        start = int(asked.removeprefix("bytes=").removesuffix("-"))
        rest = content[start:]
        handler.send_file(content, length=len(rest), body=rest[:num_bytes])
        handler.close_connection = True

    return answer


def announce(length: int) -> Answer:
    """Sends the whole file under a wrong Content-Length, and closes the connection."""

    def answer(handler, content):
        handler.send_file(content, length=length, body=content)
        handler.close_connection = True

    return answer


def send_instead(content: bytes) -> Answer:
    """Sends other bytes, as a damaged mirror does."""
    return lambda handler, _: handler.send_file(content)


@contextlib.contextmanager
def web_server() -> Iterator[WebServer]:
    """Serves on a free port of the loopback interface."""
    handler = type("Handler", (_Handler,), {})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        handler.web = WebServer(f"http://127.0.0.1:{server.server_address[1]}")
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield handler.web
        finally:
            server.shutdown()
            thread.join()
