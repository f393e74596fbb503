"""A headless Chromium, for tests of the report.

It is driven through pipes by the DevTools protocol (https://chromedevtools.github.io/devtools-protocol), so that one
browser can open many pages.
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
"""True of a report whose visible figures are drawn."""

_SECONDS = 240.0
_PAUSE_SECONDS = 0.05
_READ_BYTES = 1 << 20


def find_chromium() -> str | None:
    """Find a Chromium on this machine; None where there is none."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Browser:
    """A headless Chromium that runs for the length of a block."""

    def __enter__(self) -> Self:
        chromium = find_chromium()
        assert chromium is not None
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        its_input, self._commands = os.pipe()
        self._answers, its_output = os.pipe()
        command = [
            chromium,
            *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
            *("--remote-debugging-pipe", f"--user-data-dir={self._profile.name}", "about:blank"),
        ]
        # Chromium reads commands from file 3 and writes answers to file 4.
        shell = ["/bin/bash", "-c", f'exec "$@" 3<&{its_input} 4>&{its_output}', "bash", *command]
        self._process = subprocess.Popen(
            shell,
            pass_fds=(its_input, its_output),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "HOME": self._profile.name},
        )
        os.close(its_input)
        os.close(its_output)
        self._numbers = itertools.count(1)
        self._unread = b""
        self._events: list[dict[str, Any]] = []
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._commands)  # on which it ends
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
        """Open a page in a new tab, let it run, and give its document and what it logged.

        Args:
            page: the HTML file.
            fragment: of its address, such as ``"#cell=21"``.
            until: what is true of the loaded page when it has run, in JavaScript.
            size: of the window, width and height: as high as the page, so that every figure is near enough to be drawn.

        Returns:
            The document as HTML, and lines that begin with the level.
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
                raise TimeoutError(f"{page} never came to: {until}")
            time.sleep(_PAUSE_SECONDS)
        document = str(self._evaluate(session, "'<!DOCTYPE html>' + document.documentElement.outerHTML"))
        logged = [line for event in self._events if event.get("sessionId") == session for line in _describe(event)]
        self._call("Target.closeTarget", targetId=target)
        return document, logged

    def _call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        os.write(self._commands, json.dumps(message | ({"sessionId": session} if session else {})).encode() + b"\0")
        answer = self._read(lambda got: got.get("id") == number)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        result: dict[str, Any] = answer["result"]
        return result

    def _evaluate(self, session: str, expression: str) -> Any:
        answer = self._call("Runtime.evaluate", session, expression=expression, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']['text']}")
        return answer["result"].get("value")

    def _wait_for(self, is_wanted: Callable[[dict[str, Any]], bool]) -> None:
        if not any(map(is_wanted, self._events)):
            self._read(lambda got: "method" in got and is_wanted(got))

    def _read(self, is_wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Read messages up to a wanted one; events are kept."""
        end = time.monotonic() + _SECONDS
        while True:
            while b"\0" in self._unread:
                raw, _, self._unread = self._unread.partition(b"\0")
                got: dict[str, Any] = json.loads(raw)
                if "method" in got:
                    self._events.append(got)
                if is_wanted(got):
                    return got
            if not select.select([self._answers], [], [], max(0.0, end - time.monotonic()))[0]:
                raise TimeoutError(f"Chromium was silent for {_SECONDS:g} s")
            piece = os.read(self._answers, _READ_BYTES)
            if not piece:
                raise RuntimeError("Chromium has ended")
            self._unread += piece


def _describe(event: dict[str, Any]) -> list[str]:
    """Say what a page logged or threw: lines that begin with the level."""
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
