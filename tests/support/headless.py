"""A headless Chromium, for tests of the report.

It is controlled through pipes with the DevTools protocol (https://chromedevtools.github.io/devtools-protocol), so that
one browser can open many pages.
"""

import itertools
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

NAMES = ("chromium", "chromium-browser", "google-chrome")
DRAWN = """[...document.querySelectorAll("section:not([hidden]) figure[data-figure]")]
  .every((figure) => figure.dataset.drawn === "true")"""
"""JavaScript condition that is true if a report's visible figures are drawn."""

_SECONDS = 240.0
_PAUSE_SECONDS = 0.05
_READ_BYTES = 1 << 20


def find_chromium() -> str | None:
    """Return the path of Chromium on this machine, or None."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """A headless Chromium, as a context manager."""

    def __enter__(self) -> Self:
        chromium = find_chromium()
        assert chromium is not None
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        browser_input, self._commands = os.pipe()
        self._answers, browser_output = os.pipe()
        command = [
            chromium,
            *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
            *("--remote-debugging-pipe", f"--user-data-dir={self._profile.name}", "about:blank"),
        ]
        # Chromium reads commands from file descriptor 3 and writes answers to 4.
        shell = ["/bin/bash", "-c", f'exec "$@" 3<&{browser_input} 4>&{browser_output}', "bash", *command]
        self._process = subprocess.Popen(
            shell,
            pass_fds=(browser_input, browser_output),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "HOME": self._profile.name},
        )
        os.close(browser_input)
        os.close(browser_output)
        self._numbers = itertools.count(1)
        self._unread = b""
        self._events: list[dict[str, Any]] = []
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._commands)  # makes Chromium exit
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._answers)
        self._profile.cleanup()

    def dump(
        self, page: Path, fragment: str = "", *, until: str = DRAWN, size: tuple[int, int] = (1400, 12000)
    ) -> tuple[str, list[str]]:
        """Open a page in a new tab, wait until it has run, and return its document and log.

        Args:
            page: the HTML file.
            fragment: fragment of the URL, such as ``"#cell=21"``.
            until: JavaScript condition that is true when the page has run.
            size: width and height of the window, at least as high as the page, so that all figures are drawn.

        Returns:
            The document as HTML, and lines that begin with the log level.
        """
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self._events.clear()
        for domain in ("Page", "Runtime", "Log"):
            self._call(f"{domain}.enable", session)
        width, height = size
        self._call(
            "Emulation.setDeviceMetricsOverride", session, width=width, height=height, deviceScaleFactor=1, mobile=False
        )
        self._call("Page.navigate", session, url=f"{page.as_uri()}{fragment}")
        self._wait_for(lambda event: event["method"] == "Page.loadEventFired")
        end = time.monotonic() + _SECONDS
        while not self._evaluate(session, f"Boolean({until})"):
            if time.monotonic() > end:
                raise TimeoutError(f"{page} did not reach: {until}")
            time.sleep(_PAUSE_SECONDS)
        document = str(self._evaluate(session, "'<!DOCTYPE html>' + document.documentElement.outerHTML"))
        logged = [line for event in self._events if event.get("sessionId") == session for line in _describe(event)]
        self._call("Target.closeTarget", targetId=target)
        return document, logged

    def _call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        os.write(self._commands, json.dumps(message | ({"sessionId": session} if session else {})).encode() + b"\0")
        answer = self._read(lambda message: message.get("id") == number)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        result: dict[str, Any] = answer["result"]
        return result

    def _evaluate(self, session: str, expression: str) -> Any:
        answer = self._call("Runtime.evaluate", session, expression=expression, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']['text']}")
        return answer["result"].get("value")

    def _wait_for(self, is_expected: Callable[[dict[str, Any]], bool]) -> None:
        if not any(map(is_expected, self._events)):
            self._read(lambda message: "method" in message and is_expected(message))

    def _read(self, is_expected: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Read messages up to the expected one and return it; events are recorded."""
        end = time.monotonic() + _SECONDS
        while True:
            while b"\0" in self._unread:
                raw, _, self._unread = self._unread.partition(b"\0")
                message: dict[str, Any] = json.loads(raw)
                if "method" in message:
                    self._events.append(message)
                if is_expected(message):
                    return message
            if not select.select([self._answers], [], [], max(0.0, end - time.monotonic()))[0]:
                raise TimeoutError(f"Chromium did not answer for {_SECONDS:g} s")
            piece = os.read(self._answers, _READ_BYTES)
            if not piece:
                raise RuntimeError("Chromium has ended")
            self._unread += piece


def _describe(event: dict[str, Any]) -> list[str]:
    """Return the lines that a page logged or threw, which begin with the log level."""
    params = event.get("params", {})
    if event["method"] == "Runtime.consoleAPICalled":
        words = " ".join(str(part.get("value", part.get("description", ""))) for part in params["args"])
        return [f"{params['type'].upper()} {words}"]
    if event["method"] == "Runtime.exceptionThrown":
        details = params["exceptionDetails"]
        return [f"ERROR {details['text']} {details.get('exception', {}).get('description', '')}"]
    if event["method"] == "Log.entryAdded":
        return [f"{params['entry']['level'].upper()} {params['entry']['text']}"]
    return []
