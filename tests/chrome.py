"""A headless Chromium, driven over ChromeDriver's HTTP protocol with the standard library."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import tempfile
import urllib.request
from pathlib import Path
from typing import Any

from conftest import WAIT, wait_until

FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run"
    " --disable-background-networking --disable-component-update --disable-sync"
    " --disable-dev-shm-usage --hide-scrollbars --force-device-scale-factor=1"
).split()
KEYS = {
    "Enter": "\ue007", "Escape": "\ue00c", "Down": "\ue015", "Up": "\ue013", "Left": "\ue012",
    "Right": "\ue014", "Tab": "\ue004",
}  # fmt: skip
_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"


def is_installed() -> bool:
    return bool(shutil.which("chromium") and shutil.which("chromedriver"))


class Chrome:
    """One browser window. Closing it ends the browser and its driver."""

    def __init__(
        self, language: str = "en-US", dark: bool = False, width: int = 1280, height: int = 800
    ) -> None:
        self._profile = tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True)
        self._driver = subprocess.Popen(
            ["chromedriver", "--port=0"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._session = ""
        try:
            self._base = f"http://127.0.0.1:{self._find_port()}"
            arguments = [
                *FLAGS,
                f"--user-data-dir={self._profile.name}",
                f"--window-size={width},{height}",
            ]
            arguments += [f"--lang={language}", f"--accept-lang={language}"]
            options = {
                "args": arguments,
                "binary": shutil.which("chromium"),
                "prefs": {"intl.accept_languages": language, "intl.selected_languages": language},
            }
            wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
            answer = self._send("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
            self._session = f"/session/{answer['sessionId']}"
            # What is looked for may be on its way: the page draws a part at a time.
            self._ask("/timeouts", {"implicit": WAIT * 1000})
            self.set_view(width, height, dark)
        except BaseException:
            self.close()
            raise

    def _find_port(self) -> int:
        assert self._driver.stdout is not None
        for line in self._driver.stdout:
            if found := re.search(r"started successfully on port (\d+)", line):
                return int(found[1])
        raise RuntimeError("chromedriver did not start")

    def _send(self, method: str, path: str, body: object = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._base + path, data, method=method)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=WAIT) as reply:
                return json.load(reply)["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(json.load(error)["value"]["message"]) from error

    def _ask(self, path: str, body: object = None) -> Any:
        return self._send("GET" if body is None else "POST", self._session + path, body)

    def __enter__(self) -> Chrome:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        try:
            if self._session:
                self._send("DELETE", self._session)
        finally:
            self._driver.terminate()
            self._driver.communicate(timeout=WAIT)
            self._profile.cleanup()

    def devtools(self, command: str, **parameters: Any) -> Any:
        return self._ask("/goog/cdp/execute", {"cmd": command, "params": parameters})

    def set_view(self, width: int, height: int, dark: bool = False) -> None:
        self.devtools(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.devtools("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, path: Path, fragment: str = "", wait: bool = True) -> None:
        self._ask("/url", {"url": "about:blank"})
        self._ask("/url", {"url": path.as_uri() + fragment})
        if wait:
            self.wait_for("document.documentElement.dataset.ready === 'true'")

    def run(self, script: str, *arguments: object) -> Any:
        return self._ask("/execute/sync", {"script": script, "args": list(arguments)})

    def value(self, expression: str) -> Any:
        return self.run(f"return {expression};")

    def wait_for(self, expression: str) -> None:
        wait_until(lambda: self.value(expression), expression)

    def find(self, selector: str) -> str:
        found = self._ask("/element", {"using": "css selector", "value": selector})
        return str(found[_ELEMENT])

    def click(self, selector: str) -> None:
        self._ask(f"/element/{self.find(selector)}/click", {})

    def type(self, selector: str, text: str) -> None:
        self._ask(f"/element/{self.find(selector)}/value", {"text": text})

    def press(self, *keys: str) -> None:
        """Press keys one after the other, wherever the focus is."""
        pressed = [KEYS.get(key, key) for key in keys]
        actions = [{"type": kind, "value": key} for key in pressed for kind in ("keyDown", "keyUp")]
        self._ask("/actions", {"actions": [{"type": "key", "id": "keys", "actions": actions}]})

    def text(self, selector: str) -> str:
        return str(self._ask(f"/element/{self.find(selector)}/text"))

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self._ask("/screenshot")))

    def log(self) -> list[str]:
        """Return what the console said since the last call."""
        return [entry["message"] for entry in self._ask("/se/log", {"type": "browser"})]
