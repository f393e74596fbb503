"""Settings of the documentation site; `make docs` builds it."""

import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(REPOSITORY), str(REPOSITORY / "pipeline")]

from docs._site.pages import setup  # noqa: E402, F401 - Sphinx calls it
from robust201 import __version__  # noqa: E402

project = "robust201"
author = "The robust201 developers"
release = __version__

extensions = ["myst_parser"]
root_doc = "index"
exclude_patterns = ["_site", "images"]
language = "en"

myst_heading_anchors = 4  # the anchors that GitHub gives to headings

html_theme = "pydata_sphinx_theme"
html_title = "robust201"
html_copy_source = False
html_show_sourcelink = False
html_static_path = ["_site/static"]
html_css_files = ["site.css"]
html_theme_options = {
    "header_links_before_dropdown": 6,
    "navigation_with_keys": False,
    "show_toc_level": 2,
    "footer_start": ["last-updated"],
    "footer_end": [],
}
html_last_updated_fmt = None  # without a date, the footer's only item is not shown
html_sidebars = {"index": [], "tutorial": []}  # these pages have no subpages
