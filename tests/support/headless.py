"""Headless Chromium for tests of the report.

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

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "chromium-headless-shell")
FIGURES_ARE_DRAWN = """[...document.querySelectorAll("section:not([hidden]) figure[data-figure]")]
  .every((figure) => figure.dataset.drawn === "true")"""
"""JavaScript condition: all visible figures of a report are drawn."""

_TIMEOUT_SECONDS = 240.0
_POLL_SECONDS = 0.05
_READ_BYTES = 1 << 20


def find_chromium() -> str | None:
    """Return the path of Chromium on this machine, or None."""
    return next((path for program in PROGRAMS if (path := shutil.which(program))), None)


class Browser:
    """A headless Chromium, as a context manager."""

    def __enter__(self) -> Self:
        chromium = find_chromium()
        assert chromium is not None
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        browser_input, self._commands = os.pipe()
        self._responses, browser_output = os.pipe()
        command = [
            chromium,
            *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
            *("--remote-debugging-pipe", f"--user-data-dir={self._profile.name}", "about:blank"),
        ]
        # Chromium reads commands from file descriptor 3, and writes responses to file descriptor 4.
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
        self._message_ids = itertools.count(1)
        self._unread = b""
        self._events: list[dict[str, Any]] = []
        return self

    def __exit__(
        self, exception_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        os.close(self._commands)  # makes Chromium exit
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._responses)
        self._profile.cleanup()

    def dump(
        self, page: Path, fragment: str = "", *, until: str = FIGURES_ARE_DRAWN, size: tuple[int, int] = (1400, 12000)
    ) -> tuple[str, list[str]]:
        """Open a page in a new tab, wait until its scripts have run, and return its document and log.

        Args:
            page: the HTML file.
            fragment: fragment of the URL, such as ``"#network=21"``.
            until: JavaScript condition that is true when the scripts have run.
            size: width and height of the window. The window must be as high as the page, so that all figures are drawn.

        Returns:
            The document as HTML, and the lines of the log, each of which begins with its level.
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
        deadline = time.monotonic() + _TIMEOUT_SECONDS
        while not self._evaluate(session, f"Boolean({until})"):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{page} did not satisfy this condition in {_TIMEOUT_SECONDS:g} s: {until}")
            time.sleep(_POLL_SECONDS)
        document = str(self._evaluate(session, "'<!DOCTYPE html>' + document.documentElement.outerHTML"))
        log_lines = [
            line for event in self._events if event.get("sessionId") == session for line in _format_log_lines(event)
        ]
        self._call("Target.closeTarget", targetId=target)
        return document, log_lines

    def _call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        message_id = next(self._message_ids)
        message = {"id": message_id, "method": method, "params": parameters}
        os.write(self._commands, json.dumps(message | ({"sessionId": session} if session else {})).encode() + b"\0")
        response = self._read_until(lambda message: message.get("id") == message_id)
        if "error" in response:
            raise RuntimeError(f"{method}: {response['error']}")
        result: dict[str, Any] = response["result"]
        return result

    def _evaluate(self, session: str, expression: str) -> Any:
        response = self._call("Runtime.evaluate", session, expression=expression, returnByValue=True)
        if "exceptionDetails" in response:
            raise RuntimeError(f"{expression}: {response['exceptionDetails']['text']}")
        return response["result"].get("value")

    def _wait_for(self, is_expected: Callable[[dict[str, Any]], bool]) -> None:
        if not any(map(is_expected, self._events)):
            self._read_until(lambda message: "method" in message and is_expected(message))

    def _read_until(self, is_expected: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Read messages up to the expected message and return it; record all events among the messages."""
        deadline = time.monotonic() + _TIMEOUT_SECONDS
        while True:
            while b"\0" in self._unread:
                raw, _, self._unread = self._unread.partition(b"\0")
                message: dict[str, Any] = json.loads(raw)
                if "method" in message:
                    self._events.append(message)
                if is_expected(message):
                    return message
            if not select.select([self._responses], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise TimeoutError(f"Chromium did not respond for {_TIMEOUT_SECONDS:g} s")
            chunk = os.read(self._responses, _READ_BYTES)
            if not chunk:
                raise RuntimeError("Chromium has ended")
            self._unread += chunk


def _format_log_lines(event: dict[str, Any]) -> list[str]:
    """Return the log lines of an event: a console message, an exception or a log entry."""
    params = event.get("params", {})
    if event["method"] == "Runtime.consoleAPICalled":
        message = " ".join(str(argument.get("value", argument.get("description", ""))) for argument in params["args"])
        return [f"{params['type'].upper()} {message}"]
    if event["method"] == "Runtime.exceptionThrown":
        details = params["exceptionDetails"]
        return [f"ERROR {details['text']} {details.get('exception', {}).get('description', '')}"]
    if event["method"] == "Log.entryAdded":
        return [f"{params['entry']['level'].upper()} {params['entry']['text']}"]
    return []
