"""The Python examples in the pages on single networks run in order, with one session per page."""

from typing import Any

import pytest

from robust201 import api
from robust201.tasks import PRESETS
from tests.project.test_documents import examples


@pytest.mark.filterwarnings("ignore:(single step|ensemble)")  # caused by few steps
def test_api_page_examples_run(monkeypatch, capsys, tmp_path):
    quick_keys = PRESETS["quick"]
    monkeypatch.setitem(quick_keys, "aa_standard", quick_keys["aa_standard"] | {"steps": 3, "queries": 10})
    monkeypatch.setattr(api, "QUICK_IMAGES", 20)
    monkeypatch.chdir(tmp_path)
    for page in ("docs/api.md", "docs/compare.md"):
        namespace: dict[str, Any] = {}
        for block in examples(page, "python"):
            exec(compile(block.replace('"fmn", count=20', '"fmn", count=5'), page, "exec"), namespace)
    captured = capsys.readouterr()
    assert "withstand fgsm, pgd, aa_standard at epsilon 8/255 (Linf)" in captured.out
    assert "is significantly more accurate" in captured.out or "do not differ significantly" in captured.out
