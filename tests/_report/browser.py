"""Drive a headless Chromium by its debugging protocol, with the websockets of tornado."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

_FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--enable-unsafe-swiftshader"),
    *("--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-sync"),
    *("--disable-component-update", "--remote-debugging-port=0", "--hide-scrollbars"),
)
_PATIENCE = 60


def find_chromium() -> str | None:
    """Path of a Chromium or Chrome."""
    names = ("chromium", "chromium-browser", "google-chrome", "chrome")
    return next((path for name in names if (path := shutil.which(name))), None)


class Browser:
    """A browser with one page, and the addresses that the page asked for."""

    def __init__(self, program: str, folder: Path, *, width: int, height: int = 900) -> None:
        self.requests: list[str] = []
        self.errors: list[str] = []
        self._folder = folder
        self._number = 0
        self._loop = asyncio.new_event_loop()
        self._process = subprocess.Popen(
            [program, *_FLAGS, f"--user-data-dir={folder}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            self._socket = self._loop.run_until_complete(self._connect())
            for domain in ("Page", "Network", "Runtime"):
                self.call(f"{domain}.enable")
            metrics = {"width": width, "height": height, "deviceScaleFactor": 1}
            self.call("Emulation.setDeviceMetricsOverride", mobile=width < 500, **metrics)
        except BaseException:
            self.close()
            raise

    async def _connect(self) -> Any:
        from tornado.httpclient import AsyncHTTPClient
        from tornado.websocket import websocket_connect

        port = self._folder / "DevToolsActivePort"
        end = time.monotonic() + _PATIENCE
        while not (port.exists() and "\n" in port.read_text()):
            if time.monotonic() > end or self._process.poll() is not None:
                raise TimeoutError("the browser did not start")
            await asyncio.sleep(0.05)
        address = f"http://127.0.0.1:{port.read_text().split()[0]}/json/list"
        listed = json.loads((await AsyncHTTPClient().fetch(address)).body)
        [page] = [target for target in listed if target["type"] == "page"]
        return await websocket_connect(page["webSocketDebuggerUrl"], max_message_size=2**27)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a method of the protocol, and note what happens meanwhile."""
        self._number += 1
        message = json.dumps({"id": self._number, "method": method, "params": params})
        return self._loop.run_until_complete(asyncio.wait_for(self._ask(message), _PATIENCE))

    async def _ask(self, message: str) -> dict[str, Any]:
        await self._socket.write_message(message)
        while True:
            answer = json.loads(await self._socket.read_message())
            if answer.get("method") == "Network.requestWillBeSent":
                self.requests.append(answer["params"]["request"]["url"])
            if answer.get("method") == "Runtime.exceptionThrown":
                self.errors.append(json.dumps(answer["params"]["exceptionDetails"])[:500])
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]

    def run(self, code: str) -> Any:
        """Value of an expression in the page, waited for if it is a promise."""
        answer = self.call("Runtime.evaluate", expression=code, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait(self, code: str) -> Any:
        """Wait until an expression is true, and return its value."""
        end = time.monotonic() + _PATIENCE
        while not (value := self.run(code)):
            if time.monotonic() > end:
                raise TimeoutError(code)
            time.sleep(0.05)
        return value

    def open(self, path: Path) -> None:
        """Open a page, and wait until its map is drawn."""
        self.requests.clear()
        self.call("Page.navigate", url=path.as_uri())
        self.wait("performance.getEntriesByName('map-drawn').length")

    def move(self, x: float, y: float) -> None:
        """Move the pointer."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def press(self, key: str, code: int, text: str = "") -> None:
        """Press a key and let it go."""
        named = {"key": key, "windowsVirtualKeyCode": code}
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **named)
        self.call("Input.dispatchKeyEvent", type="keyUp", **named)

    def close(self) -> None:
        """End the browser."""
        if hasattr(self, "_socket"):
            self._loop.run_until_complete(self._leave())
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._loop.close()

    async def _leave(self) -> None:
        self._socket.close()
        # What the closed socket still has to do.
        await asyncio.sleep(0.1)
