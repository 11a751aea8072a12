"""A server on this machine that answers the Hugging Face Hub's client as the hub does.

It knows what is needed to make a repository, commit files to a branch and download them. Files are
committed within the request, as the hub allows it for small ones.
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterator

TOKEN = "hf_secret"


class Hub(ThreadingHTTPServer):
    """Holds repositories, and answers with the status ``fault`` or the code ``code`` instead.

    ``commits`` are the files of each commit, ``branches`` the commit of each branch, and ``asked``
    the requests, each as method and path.
    """

    daemon_threads = True

    def __init__(self) -> None:
        self.commits: dict[str, dict[str, bytes]] = {}
        self.branches: dict[str, dict[str, str]] = {}
        self.messages: list[str] = []
        self.private: set[str] = set()
        self.fault: int | None = None
        self.code: str | None = None
        self.asked: list[tuple[str, str]] = []
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def commit(self, repo_id: str, files: dict[str, bytes], branch: str = "main") -> str:
        """Add files to a branch, and return the commit."""
        branches = self.branches.setdefault(repo_id, {})
        held = self.commits.get(branches.get(branch, ""), {}) | files
        digest = hashlib.sha1(repr((repo_id, branch, len(self.commits))).encode()).hexdigest()
        self.commits[digest] = held
        branches[branch] = digest
        return digest

    def find(self, repo_id: str, revision: str) -> str | None:
        """The commit of a branch, or a commit itself."""
        commit = self.branches[repo_id].get(revision, revision)
        return commit if commit in self.commits else None


class _Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def log_message(self, *_args: Any) -> None:
        pass

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path).strip("/")
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.asked.append((self.command, path))
        if self.server.fault is not None:
            return self._send({"error": "as asked"}, status=self.server.fault)
        if self.server.code is not None:
            return self._refuse(self.server.code, 403)
        is_owner = self.headers.get("Authorization") == f"Bearer {TOKEN}"
        match path.split("/"):
            case ["api", "validate-yaml"]:
                return self._send({"errors": [], "warnings": []})
            case ["api", "repos", "create"]:
                return self._create(json.loads(body), is_owner)
            case ["api", "models", owner, name, *rest]:
                repo_id = f"{owner}/{name}"
                if self._is_hidden(repo_id, is_owner):
                    return self._refuse("RepoNotFound", 404)
                return self._api(repo_id, rest, body, is_owner)
            case [owner, name, "resolve", commit, *parts]:
                if self._is_hidden(f"{owner}/{name}", is_owner):
                    return self._refuse("RepoNotFound", 404)
                return self._file(commit, "/".join(parts))
        return self._refuse("EntryNotFound", 404)

    def _is_hidden(self, repo_id: str, is_owner: bool) -> bool:
        is_private = repo_id in self.server.private and not is_owner
        return repo_id not in self.server.branches or is_private

    def _create(self, asked: dict[str, Any], is_owner: bool) -> None:
        repo_id = f"{asked['organization']}/{asked['name']}"
        if not is_owner:
            return self._send({"error": "Invalid username or password."}, status=401)
        if repo_id in self.server.branches:
            return self._send({"url": f"{self.server.url}/{repo_id}"}, status=409)
        if asked.get("private") or asked.get("visibility") == "private":
            self.server.private.add(repo_id)
        self.server.commit(repo_id, {".gitattributes": b""})
        return self._send({"url": f"{self.server.url}/{repo_id}"})

    def _api(self, repo_id: str, rest: list[str], body: bytes, is_owner: bool) -> None:
        match rest:
            case [] | ["revision", _]:
                commit = self.server.find(repo_id, rest[1] if rest else "main")
                if commit is None:
                    return self._refuse("RevisionNotFound", 404)
                siblings = [{"rfilename": name} for name in self.server.commits[commit]]
                return self._send({"id": repo_id, "sha": commit, "siblings": siblings})
            case ["tree", commit]:
                return self._send(_tree(self.server.commits[commit]))
            case [*_] if not is_owner:
                return self._send({"error": "Forbidden: you may not write."}, status=403)
            case ["branch", branch]:
                if branch in self.server.branches[repo_id]:
                    return self._send({"error": "Reference already exists"}, status=409)
                self.server.branches[repo_id][branch] = self.server.branches[repo_id]["main"]
                return self._send({})
            case ["preupload", _]:
                files = [each["path"] for each in json.loads(body)["files"]]
                modes = [{"path": p, "uploadMode": "regular", "shouldIgnore": False} for p in files]
                return self._send({"files": modes})
            case ["commit", branch]:
                return self._commit(repo_id, branch, body)
        return self._refuse("EntryNotFound", 404)

    def _commit(self, repo_id: str, branch: str, body: bytes) -> None:
        lines = [json.loads(line) for line in body.splitlines()]
        held = {
            line["value"]["path"]: base64.b64decode(line["value"]["content"])
            for line in lines
            if line["key"] == "file"
        }
        proposed = "create_pr=1" in self.path
        self.server.messages += [x["value"]["summary"] for x in lines if x["key"] == "header"]
        commit = self.server.commit(repo_id, held, "refs/pr/1" if proposed else branch)
        address = f"{self.server.url}/{repo_id}"
        answer = {"commitUrl": f"{address}/commit/{commit}", "commitOid": commit}
        pull_request = {"pullRequestUrl": f"{address}/discussions/1"} if proposed else {}
        self._send({**answer, "success": True, **pull_request})

    def _file(self, commit: str, name: str) -> None:
        content = self.server.commits.get(commit, {}).get(name)
        if content is None:
            return self._refuse("EntryNotFound", 404)
        headers = {"ETag": f'"{_blob_id(content)}"', "X-Repo-Commit": commit}
        return self._write(content, 200, headers)

    def _refuse(self, code: str, status: int) -> None:
        self._send({"error": code}, status=status, headers={"X-Error-Code": code})

    def _send(self, held: Any, *, status: int = 200, headers: dict[str, str] | None = None) -> None:
        headers = {"Content-Type": "application/json"} | (headers or {})
        self._write(json.dumps(held).encode(), status, headers)

    def _write(self, content: bytes, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


def _blob_id(content: bytes) -> str:
    return hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()


def _tree(files: dict[str, bytes]) -> list[dict[str, Any]]:
    return [
        {"type": "file", "oid": _blob_id(content), "size": len(content), "path": path}
        for path, content in files.items()
    ]


@contextmanager
def serve() -> Iterator[Hub]:
    """Run a hub in a thread."""
    hub = Hub()
    thread = threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        thread.join()
        hub.server_close()
