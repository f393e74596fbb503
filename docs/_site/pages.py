"""Changes to a page before Sphinx parses it: tables of contents, and links out of `docs/`.

The files themselves stay plain Markdown, so that GitHub shows them too.
"""

import re
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]

CONTENTS = {
    "index": ["tutorial", "guides", "reference", "protocol", "internals", "papers"],
    "guides": [
        *("api", "compare", "autoattack", "your-own", "training", "training-data"),
        *("sweeps", "sampling", "cluster", "slurm", "ray", "watching", "reproduce-paper"),
        *("report", "publish", "use-cases", "architecture-search", "measures", "trust"),
    ],
    "reference": [
        *(
            "configuration",
            "configuration-inputs",
            "reference/sweep-fields",
            "reference/key-fields",
            "reference/training-fields",
        ),
        *("reference/commands", "reference/api", "dataset", "reader", "statistics", "zoo", "glossary"),
    ],
    "protocol": [
        *("protocol/attacks", "protocol/corruptions", "protocol/measures", "protocol/training"),
        *("protocol/images-and-processors", "protocol/statistics"),
    ],
    "internals": [
        *("internals/engine", "internals/how-a-run-works", "internals/performance", "internals/faults"),
        *("project/architecture", "project/contributing", "project/security", "project/changelog"),
    ],
    "papers": [
        *("reproduction", "papers/dataset", "papers/robust-features", "papers/image-distribution", "papers/controls"),
    ],
}
"""Pages below each page, in the order of the menu."""

SHORT_TITLES = {
    "tutorial": "Tutorial",
    "protocol": "Protocol",
    "papers": "Published papers",
    "configuration": "Sweep YAML",
    "configuration-inputs": "Sweep YAML: networks, weights, images",
    "dataset": "Files of a dataset",
    "reader": "Reading a dataset in Python",
    "statistics": "Statistics",
    "zoo": "The zoo",
    "report": "The report and its figures",
    "watching": "Watching a sweep",
    "training-data": "Training data",
    "papers/dataset": "The dataset paper",
    "papers/robust-features": "Robust features",
}
"""Menu titles of some pages, most of which have longer titles of their own."""

PAPERS = ("dataset", "robust-features", "image-distribution", "controls")

PROJECT_FILES = {
    "ARCHITECTURE.md": "docs/project/architecture.md",
    "CONTRIBUTING.md": "docs/project/contributing.md",
    "SECURITY.md": "docs/project/security.md",
    "CHANGELOG.md": "docs/project/changelog.md",
    "README.md": "docs/index.md",
    **{f"jobs/papers/{name.replace('-', '_')}/README.md": f"docs/papers/{name}.md" for name in PAPERS},
}
"""Page of the site that shows each file outside docs/; README.md is the start page."""

FILE_BY_PAGE = {page: file for file, page in PROJECT_FILES.items()}


def table_of_contents(docname: str) -> str:
    """Return the directive that lists the pages below a page; empty if there are none."""
    pages = CONTENTS.get(docname)
    if pages is None:
        return ""
    entries = [f"{SHORT_TITLES[page]} </{page}>" if page in SHORT_TITLES else f"/{page}" for page in pages]
    lines = "\n".join(entries)
    return f"\n```{{toctree}}\n:hidden:\n\n{lines}\n```\n"


def rewrite_links(text: str, file: Path, page: Path) -> str:
    """Return the Markdown of `file` with relative links that work on `page`; both paths are relative to the repository.

    A link to a file that has a page leads to that page. A link to a folder becomes plain text.
    """

    def rewrite(match: re.Match[str]) -> str:
        label, link = match.groups()
        name, hash_sign, anchor = link.partition("#")
        if not name or ":" in name:
            return match.group()
        target = (REPOSITORY / file.parent / name).resolve().relative_to(REPOSITORY)
        site_page = PROJECT_FILES.get(str(target))
        if site_page is None and (REPOSITORY / target).is_dir():
            return label.strip("[]")
        if site_page is not None:
            target = Path(site_page)
        # A path of the site begins with a slash; files elsewhere are shown (images) or offered as downloads.
        if target.is_relative_to("docs"):
            return f"{label}(/{target.relative_to('docs')}{hash_sign}{anchor})"
        return f"{label}({'' if label[0] == '!' else 'path:'}{'../' * len(page.parent.parts)}{target})"

    return re.sub(r"(!?\[[^\]]*\])\(([^)\s]+)\)", rewrite, text)


def prepare_page(docname: str, text: str) -> str:
    """Return the Markdown that Sphinx parses for a page."""
    page = Path("docs", f"{docname}.md")
    file = Path(FILE_BY_PAGE.get(str(page), page))
    if file != page:
        text = (REPOSITORY / file).read_text()
    return rewrite_links(text, file, page) + table_of_contents(docname)


def setup(app: Any) -> dict[str, bool]:
    """Register the changes as handlers of Sphinx events."""

    def rewrite_source(_: Any, docname: str, content: list[str]) -> None:
        content[0] = prepare_page(docname, content[0])

    app.connect("source-read", rewrite_source)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
