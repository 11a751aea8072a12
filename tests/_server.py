"""A server on this machine, for tests of downloads."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class _Handler(BaseHTTPRequestHandler):
    server: FileServer

    def do_GET(self):
        path = self.path.lstrip("/")
        self.server.asked.append(path)
        content = self.server.files.get(path)
        if content is None:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[: -20 if self.server.is_cut else None])

    def log_message(self, *_args):
        pass


class FileServer(ThreadingHTTPServer):
    """A server on this machine: ``files`` by path, cut short if ``is_cut``; ``asked`` lists requests."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.is_cut = False
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
