"""A page in headless Chromium, driven over a pipe: what a person would click, and what the page then says."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
from pathlib import Path
from time import monotonic, sleep
from types import TracebackType
from typing import Any

LONGEST_S = 120  # of silence
FLAGS = "--headless=new --no-sandbox --disable-gpu --hide-scrollbars --no-first-run --disable-extensions"


class Browser:
    """Chromium with one page; `with Browser() as browser: browser.open(file)`."""

    def __init__(self, width: int = 1200, height: int = 900, dark: bool = False) -> None:
        self._size, self._dark = (width, height), dark

    def __enter__(self) -> Browser:
        self._folder = tempfile.mkdtemp()
        to_read, self._to = os.pipe()
        self._from, to_write = os.pipe()
        command = (
            f"exec chromium {FLAGS} --user-data-dir={self._folder} --remote-debugging-pipe 3<&{to_read} 4>&{to_write}"
        )
        self._process = subprocess.Popen(
            ["bash", "-c", command], pass_fds=(to_read, to_write), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(to_read)
        os.close(to_write)
        self._rest, self._number, self._session = b"", 0, ""
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        scheme = {"name": "prefers-color-scheme", "value": "dark" if self._dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.resize(*self._size)
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._process.terminate()
        self._process.wait(20)
        os.close(self._to)
        os.close(self._from)
        shutil.rmtree(self._folder, ignore_errors=True)

    def resize(self, width: int, height: int) -> None:
        """Give the page another size, as on a phone."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    def open(self, file: Path, query: str = "") -> None:
        """Open a file, and wait until it is loaded."""
        self.events.clear()
        self.call("Page.navigate", url=f"file://{file}{query}")
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self._take()

    def value(self, expression: str) -> Any:
        """What an expression of JavaScript gives, or what its promise is kept with."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def until(self, expression: str, within_s: float = 30) -> Any:
        """What an expression gives when it gives something: figures are drawn when they come into view."""
        end = monotonic() + within_s
        while not (found := self.value(expression)) and monotonic() < end:
            sleep(0.05)
        return found

    def problems(self) -> list[str]:
        """What the page's console has complained of: exceptions, and what its security policy has refused."""
        found = [event["params"] for event in self.events if event["method"] == "Log.entryAdded"]
        thrown = [event["params"] for event in self.events if event["method"] == "Runtime.exceptionThrown"]
        return [one["entry"]["text"] for one in found] + [str(one["exceptionDetails"]) for one in thrown]

    def shoot(self, file: Path, whole: bool = True) -> None:
        """A picture of the page."""
        found = self.call("Page.captureScreenshot", captureBeyondViewport=whole)
        file.write_bytes(base64.b64decode(found["data"]))

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Ask the browser to do something, and wait for its answer."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._take()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer["error"]
                return dict(answer["result"])

    def _take(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            assert select.select([self._from], [], [], LONGEST_S)[0], "chromium does not answer"
            piece = os.read(self._from, 1 << 16)
            assert piece, "chromium has ended"
            self._rest += piece
        one, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(one)
        if "method" in message:
            self.events.append(message)
        return message
