"""A headless Chromium, for tests and measurements of the report."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome")


def find_chromium() -> str | None:
    """Find a Chromium on this machine; None where there is none."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


def dump_page(
    page: Path, fragment: str = "", *, budget_ms: int | None = 20_000, size: str = "1400,12000"
) -> tuple[str, str]:
    """Open a page, let it run, and give its document and what the browser logged.

    Args:
        page: the HTML file.
        fragment: of its address, such as ``"#cell=21"``.
        budget_ms: milliseconds that the page believes to have; None takes the document when it has loaded, and leaves
            the page's clock true.
        size: of the window: as high as the page, so that every figure is near enough to be drawn.

    Returns:
        The document as HTML, and the log, in which lines with CONSOLE are the page's.
    """
    chromium = find_chromium()
    assert chromium is not None
    with tempfile.TemporaryDirectory() as profile:
        ended = subprocess.run(
            [
                chromium,
                *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
                *("--enable-logging=stderr", f"--user-data-dir={profile}", f"--window-size={size}"),
                *([] if budget_ms is None else [f"--virtual-time-budget={budget_ms}"]),
                *("--dump-dom", f"{page.as_uri()}{fragment}"),
            ],
            capture_output=True,
            text=True,
            timeout=240,
            check=True,
            env={**os.environ, "HOME": profile},
        )
    return ended.stdout, ended.stderr
