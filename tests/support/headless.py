"""Headless Chromium for tests of the report."""

import os
import re
import shutil
import subprocess
import tempfile

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "chromium-headless-shell")
VIRTUAL_MILLISECONDS = 60_000
"""Virtual time for the page's scripts; Chromium's clock skips pauses in which nothing is computed."""


def find_chromium() -> str | None:
    """Return the path of Chromium on this machine, or None."""
    return next((path for program in PROGRAMS if (path := shutil.which(program))), None)


def dump_page(url: str, size: tuple[int, int]) -> tuple[str, list[str]]:
    """Open a page in a window of this width and height; return the final HTML and console lines."""
    chromium = find_chromium()
    assert chromium is not None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [
            chromium,
            *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
            *(f"--user-data-dir={profile}", f"--window-size={size[0]},{size[1]}", "--enable-logging=stderr"),
            *(f"--virtual-time-budget={VIRTUAL_MILLISECONDS}", "--dump-dom", url),
        ]
        result = subprocess.run(
            command, env={**os.environ, "HOME": profile}, capture_output=True, text=True, check=True, timeout=240
        )
    return result.stdout, re.findall(r":CONSOLE[:(].*", result.stderr)
