"""Drive the system's Chromium: real key presses and clicks, by its debugging protocol over pipes.

    with Browser(tmp_path) as browser:
        browser.open(page, width=1280, height=900)
        browser.press("/")
        browser.type("sin")
        assert browser.value("document.activeElement.id") == "filter"

Nothing but Chromium is needed: its messages are JSON, each with a zero byte behind it.
"""

import base64
import json
import os
import select
import shutil
import signal
import subprocess
import sys
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

PATH = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), "")
_LIMIT = 120.0  # seconds of one answer: machines that test are busy
_END = 30.0  # seconds in which it closes
_KEYS = {  # the number of each key that has no text of its own
    "Enter": 13, "Escape": 27, "PageUp": 33, "PageDown": 34, "End": 35, "Home": 36,
    "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Tab": 9,
}  # fmt: skip
# Chromium reads from 3 and writes to 4. Our pipes may have these numbers, so both move away first.
_START = """
import fcntl, os, sys
read, write, *command = sys.argv[1:]
moved = [fcntl.fcntl(int(number), fcntl.F_DUPFD, 64) for number in (read, write)]
os.dup2(moved[0], 3)
os.dup2(moved[1], 4)
os.execv(command[0], command)
"""


class Browser:
    """One headless Chromium with one tab."""

    def __init__(self, folder: Path) -> None:
        """Start it. `folder` takes its profile."""
        read_here, write_there = os.pipe()
        read_there, self._write = os.pipe()
        self._read = read_here
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe"]
        options += [f"--user-data-dir={folder / 'profile'}", "--no-first-run", "about:blank"]
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START, str(read_there), str(write_there), PATH, *options],
            pass_fds=(read_there, write_there),
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(read_there)
        os.close(write_there)
        self._number = 0
        self._unread = b""
        self._messages: deque[dict[str, Any]] = deque()
        self._session = ""
        pages: list[dict[str, Any]] = []
        while not pages:  # the first tab opens a little later than the pipe
            targets = self._call("Target.getTargets")["targetInfos"]
            pages = [target for target in targets if target["type"] == "page"]
        attached = self._call("Target.attachToTarget", targetId=pages[0]["targetId"], flatten=True)
        self._session = attached["sessionId"]
        self._call("Page.enable")
        self._call("Runtime.enable")
        self._call("Performance.enable", timeDomain="threadTicks")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._session = ""
        self._call("Browser.close")
        try:
            self._process.wait(_END)
        finally:
            # its other processes end with it, or here
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        os.close(self._read)
        os.close(self._write)

    # --- what a reader does -----------------------------------------------------------------------

    def open(
        self,
        page: Path,
        address: str = "",
        *,
        width: int = 1280,
        height: int = 900,
        dark: bool = False,
    ) -> float:
        """Open a page in a window of this size. Return the seconds that its own thread has worked
        until its scripts have run and it is drawn.

        They do not grow while other processes of the machine are busy.
        """
        self.resize(width, height, dark=dark)
        self._call("Page.navigate", url="about:blank")
        self.value("new Promise(done => setTimeout(done, 50))")
        self._messages.clear()
        self._call("Page.navigate", url=page.as_uri() + address)
        loaded = "document.readyState === 'complete' ? done() : addEventListener('load', done)"
        self.value(f"new Promise(done => {loaded})")
        # two frames: what the first one asks for is drawn in the second
        self.value("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        self._refuse_errors()
        metrics = self._call("Performance.getMetrics")["metrics"]
        return float({one["name"]: one["value"] for one in metrics}["TaskDuration"])

    def resize(self, width: int, height: int, *, dark: bool = False) -> None:
        self._call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])

    def press(self, key: str, times: int = 1) -> None:
        """Press a key as a keyboard does: a letter, or one of the names in `_KEYS`."""
        text = {"Enter": "\r"}.get(key, key if len(key) == 1 else "")
        code = _KEYS.get(key, ord(key[0].upper()))
        about = {"key": key, "windowsVirtualKeyCode": code}
        for _ in range(times):
            self._call("Input.dispatchKeyEvent", type="keyDown", text=text, **about)
            self._call("Input.dispatchKeyEvent", type="keyUp", **about)
        self.settle()

    def type(self, text: str) -> None:
        for letter in text:
            self.press(letter)

    def click(self, selector: str) -> None:
        """Click the middle of the first element that fits, after it is scrolled into view."""
        x, y = self.value(
            f"""(() => {{
                const element = document.querySelector({json.dumps(selector)});
                element.scrollIntoView({{ block: "center" }});
                const box = element.getBoundingClientRect();
                return [box.x + box.width / 2, box.y + box.height / 2];
            }})()"""
        )
        about = {"x": x, "y": y, "button": "left", "clickCount": 1}
        self._call("Input.dispatchMouseEvent", type="mousePressed", **about)
        self._call("Input.dispatchMouseEvent", type="mouseReleased", **about)
        self.settle()

    def paste(self) -> None:
        """Paste into the element that has the focus."""
        about = {"key": "v", "windowsVirtualKeyCode": ord("V"), "modifiers": 2}
        self._call("Input.dispatchKeyEvent", type="keyDown", commands=["paste"], **about)
        self._call("Input.dispatchKeyEvent", type="keyUp", **about)
        self.settle()

    def settle(self) -> None:
        """Wait until what was pressed has had its effect, the delay of the filter included."""
        self.value("new Promise(done => setTimeout(() => requestAnimationFrame(done), 160))")
        self._refuse_errors()

    # --- what a reader sees -----------------------------------------------------------------------

    def value(self, script: str) -> Any:
        """Return the value of an expression of JavaScript, once it is there."""
        answer = self._call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in answer:
            raise AssertionError(answer["exceptionDetails"]["exception"]["description"])
        return answer["result"].get("value")

    def texts(self, selector: str) -> list[str]:
        """Return the texts of the elements that fit and are shown."""
        found: list[str] = self.value(
            f"[...document.querySelectorAll({json.dumps(selector)})]"
            ".filter(one => one.checkVisibility()).map(one => one.innerText.trim())"
        )
        return found

    def screenshot(self, path: Path) -> None:
        data = self._call("Page.captureScreenshot", format="png")["data"]
        path.write_bytes(base64.b64decode(data))

    # --- messages ---------------------------------------------------------------------------------

    def _call(self, method: str, **parameters: object) -> dict[str, Any]:
        """Ask for something, and return the answer."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result: dict[str, Any] = answer["result"]
                return result
            self._messages.append(answer)

    def _refuse_errors(self) -> None:
        """Fail if a script of the page has raised an error."""
        for message in self._messages:
            if message.get("method") == "Runtime.exceptionThrown":
                details = message["params"]["exceptionDetails"]
                raise AssertionError(details["exception"].get("description", details["text"]))

    def _next(self) -> dict[str, Any]:
        """Return the next message of the browser."""
        while b"\0" not in self._unread:
            readable, _, _ = select.select([self._read], [], [], _LIMIT)
            assert readable, f"no answer of {PATH} for {_LIMIT:g} s"
            part = os.read(self._read, 1 << 20)
            assert part, f"{PATH} has ended"
            self._unread += part
        line, _, self._unread = self._unread.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message
