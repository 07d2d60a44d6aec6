"""A headless Chromium that tests drive over the DevTools protocol, through two pipes."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from select import select
from typing import Any

COMMANDS = ("chromium", "chromium-browser", "google-chrome")
TIMEOUT_S = 60


def find_chromium() -> str:
    """The browser's command. A machine without one fails the test: nothing is skipped."""
    for command in COMMANDS:
        if path := shutil.which(command):
            return path
    raise FileNotFoundError(
        f"none of {', '.join(COMMANDS)} is on PATH: install one, on Debian by "
        "`apt-get install chromium`, or leave these tests out with -m 'not browser'"
    )


class Tab:
    """One tab, and everything that went wrong in it or that it asked the network for."""

    def __init__(self, to_browser: int, from_browser: int):
        self._to, self._from = to_browser, from_browser
        self._buffer = b""
        self._count = 0
        self._session: str | None = None
        self.errors: list[str] = []
        self.requests: list[str] = []
        self._loaded = False
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        attached = self.send("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """The result of one command of the protocol."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._count:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            assert select([self._from], [], [], TIMEOUT_S)[0], "the browser does not answer"
            chunk = os.read(self._from, 1 << 16)
            assert chunk, "the browser has ended"
            self._buffer += chunk
        text, _, self._buffer = self._buffer.partition(b"\0")
        message = json.loads(text)
        params = message.get("params", {})
        match message.get("method"):
            case "Runtime.exceptionThrown":
                self.errors.append(json.dumps(params["exceptionDetails"]))
            case "Runtime.consoleAPICalled":
                self.errors.append(json.dumps(params["args"]))
            case "Log.entryAdded":
                self.errors.append(params["entry"]["text"])
            case "Network.requestWillBeSent":
                self.requests.append(params["request"]["url"])
            case "Page.loadEventFired":
                self._loaded = True
        return message

    def open(self, path: Path) -> None:
        """Loads a file and waits until it has loaded."""
        self._loaded = False
        self.send("Page.navigate", url=path.as_uri())
        while not self._loaded:
            self._receive()

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression."""
        answer = self.send("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def press(self, *keys: str) -> None:
        """Presses keys as a user does; names as in KeyboardEvent.key."""
        codes = {"Tab": 9, "End": 35, "Home": 36, "PageUp": 33, "PageDown": 34, " ": 32}
        codes |= {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
        for key in keys:
            event = {"key": key, "windowsVirtualKeyCode": codes[key]}
            self.send("Input.dispatchKeyEvent", type="rawKeyDown", **event)
            self.send("Input.dispatchKeyEvent", type="keyUp", **event)

    def hover(self, x: float, y: float) -> None:
        """Moves the mouse."""
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def display(self, width: int, height: int = 900, scheme: str = "light") -> None:
        """The window's size and the user's preferred colour scheme."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.send("Emulation.setDeviceMetricsOverride", **size)
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.send("Emulation.setEmulatedMedia", features=[feature])

    def screenshot(self, path: Path) -> None:
        """Writes what the window shows as PNG."""
        path.write_bytes(base64.b64decode(self.send("Page.captureScreenshot")["data"]))


@contextmanager
def chromium(profile: Path) -> Iterator[Tab]:
    """A tab of a browser of its own, whose profile is in the folder `profile`."""
    browser_in, to_browser = os.pipe()
    from_browser, browser_out = os.pipe()
    arguments = [
        find_chromium(),
        "--headless",
        "--no-sandbox",  # which root, in a container, cannot have
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--no-first-run",
        f"--user-data-dir={profile}",
        "--remote-debugging-pipe",
    ]
    # The protocol wants file descriptors 3 and 4.
    redirect = f'exec "$@" 3<&{browser_in} 4>&{browser_out}'
    process = subprocess.Popen(
        ["bash", "-c", redirect, "bash", *arguments],
        pass_fds=(browser_in, browser_out),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(browser_in)
    os.close(browser_out)
    try:
        yield Tab(to_browser, from_browser)
    finally:
        os.close(to_browser)  # which ends the browser
        os.close(from_browser)
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
