"""A headless browser, driven by the WebDriver protocol over plain HTTP, so that no package is needed beside the browser."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from waiting import PATIENCE_S, wait_until

DRIVER = shutil.which("chromedriver")
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
WHY_NOT = None if DRIVER and CHROMIUM else "chromium and chromedriver are not installed"


class Browser:
    """One window. A context manager that closes it."""

    def __init__(self, folder: Path, width: int = 1500, height: int = 950) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        assert DRIVER is not None
        self._process = subprocess.Popen([DRIVER, f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self._at = f"http://127.0.0.1:{port}"
        arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", f"--user-data-dir={folder}"]
        options = {"args": [*arguments, f"--window-size={width},{height}"], "binary": CHROMIUM}
        wanted = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        self._wait_until_ready()
        session = self._call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self._at += f"/session/{session['sessionId']}"

    def _wait_until_ready(self) -> None:
        def is_ready() -> bool:
            try:
                self._call("GET", "/status")
            except OSError:
                return False
            return True

        wait_until(is_ready, "chromedriver to start")

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._at + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{path}: {error.read().decode()[:800]}") from error

    def go(self, url: str) -> None:
        """Open a page."""
        self._call("POST", "/url", {"url": url})

    def resize(self, width: int, height: int = 900) -> None:
        """Show pages as wide and high as this, in pixels, as a small screen would."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self._call("POST", "/goog/cdp/execute", {"cmd": "Emulation.setDeviceMetricsOverride", "params": metrics})

    def run(self, script: str, *arguments: Any) -> Any:
        """What a script returns; `await` is allowed in it. Raises AssertionError where the script raises anything."""
        body = f"(async (arguments) => {{ {script} }})([...arguments])"
        ends = "(value) => done({ value }), (error) => done({ error: String(error) })"
        whole = f"const done = arguments[arguments.length - 1]; {body}.then({ends});"
        answer = self._call("POST", "/execute/async", {"script": whole, "args": list(arguments)})
        assert "error" not in answer, f"{answer['error']}: {script}"
        return answer.get("value")

    def wait(self, condition: str, seconds: float = PATIENCE_S) -> Any:
        """The first true value of an expression; where it raises it is not true yet."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if found := self.run(f"try {{ return {condition}; }} catch {{ return null; }}"):
                return found
            time.sleep(0.05)
        raise AssertionError(f"not so within {seconds} s: {condition}\n{self.errors()}")

    def errors(self) -> list[str]:
        """What the page has complained of since the last call."""
        return [entry["message"] for entry in self._call("POST", "/se/log", {"type": "browser"}) if entry["level"] == "SEVERE"]

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._call("DELETE", "")
        finally:
            self._process.terminate()
            self._process.wait()
