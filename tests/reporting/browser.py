"""A Chromium without a window, spoken to over pipes by its DevTools protocol; nothing else is needed to drive it."""

import json
import os
import select
import shutil
import subprocess
import sys
import time

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
HOW = "--headless=new --no-sandbox --disable-gpu --no-first-run --disable-background-networking --remote-debugging-pipe"
START = (
    "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); os.execv(sys.argv[3], sys.argv[3:])"
)
PATIENCE = 60


class Browser:
    """One page in a browser.

    Attributes:
        requests: the addresses that were asked for.
        errors: what the console had to say against the page.
    """

    def __init__(self, profile):
        self.requests, self.errors = [], []
        self._number, self._rest, self._session = 0, b"", None
        (hears, self._says), (self._hears, says) = os.pipe(), os.pipe()
        # 3 and 4 may be in use here, so a process between puts the pipes there
        command = [
            sys.executable,
            "-c",
            START,
            str(hears),
            str(says),
            CHROMIUM,
            *HOW.split(),
            f"--user-data-dir={profile}",
        ]
        self._process = subprocess.Popen(command, pass_fds=(hears, says), stderr=subprocess.DEVNULL)
        os.close(hears)
        os.close(says)
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method, **parameters):
        """The result of a method of the protocol."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._says, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                return answer.get("result", {"exceptionDetails": answer.get("error")})

    def open(self, file, width=1200, *, dark=False):
        """Shows a file."""
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=scheme)
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=width < 500
        )
        self.call("Page.navigate", url=file.absolute().as_uri())
        self.until("document.readyState === 'complete' && location.protocol === 'file:'")

    def get(self, expression):
        """The value of an expression in the page."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def until(self, expression):
        """Waits until an expression is true; while a page is loaded it may be none."""
        end = time.monotonic() + PATIENCE
        while self.call("Runtime.evaluate", expression=expression).get("result", {}).get("value") is not True:
            assert time.monotonic() < end, f"never came: {expression}"
            time.sleep(0.05)

    def press(self, key):
        """Presses a key."""
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=CODES[key])

    def close(self):
        """Ends the browser."""
        self._process.terminate()
        self._process.wait(PATIENCE)
        os.close(self._says)
        os.close(self._hears)

    def _next(self):
        """The next message, of which requests and errors are kept."""
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._hears], [], [], PATIENCE)
            assert ready, "the browser says nothing"
            piece = os.read(self._hears, 2**16)
            assert piece, "the browser has ended"
            self._rest += piece
        line, _, self._rest = self._rest.partition(b"\0")
        message = json.loads(line)
        told = message.get("params", {})
        if message.get("method") == "Network.requestWillBeSent":
            self.requests.append(told["request"]["url"])
        if message.get("method") == "Runtime.exceptionThrown":
            self.errors.append(told["exceptionDetails"])
        if message.get("method") == "Log.entryAdded" and told["entry"]["level"] == "error":
            self.errors.append(told["entry"]["text"])
        return message


CODES = {"ArrowRight": 39, "ArrowLeft": 37, "Home": 36, "End": 35, "Tab": 9}
