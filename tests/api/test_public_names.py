"""Public names of the package, and the Python examples in docs/api.md and docs/compare.md."""

import subprocess
import sys
from typing import Any

import pytest

import robust201
from robust201 import api
from robust201.tasks import PRESETS
from tests.project.test_documents import examples


def test_dir_lists_only_public_names():
    assert dir(robust201) == sorted(robust201.__all__)
    assert all(hasattr(robust201, name) for name in dir(robust201))


def test_evaluations_load_few_modules():
    program = """
import sys, numpy as np, robust201
from torch import nn
images = np.random.default_rng(0).integers(0, 256, (20, 3, 8, 8), dtype=np.uint8)
network = nn.Sequential(nn.Flatten(), nn.Linear(192, 5))
robust201.evaluate(network, images, np.arange(20) % 5, ["clean", "pgd:8/255"], progress=False)
print(sum(name.partition(".")[0] == "robust201" for name in sys.modules))
"""
    command = [sys.executable, "-W", "ignore", "-c", program]
    assert int(subprocess.run(command, capture_output=True, text=True, check=True).stdout) <= 60


@pytest.mark.filterwarnings("ignore:(single step|ensemble)")  # caused by few steps
def test_examples_of_api_and_compare_pages_run(monkeypatch, capsys, tmp_path):
    quick_keys = PRESETS["quick"]
    monkeypatch.setitem(quick_keys, "aa_standard", quick_keys["aa_standard"] | {"steps": 3, "queries": 10})
    monkeypatch.setattr(api, "N_QUICK_IMAGES", 20)
    monkeypatch.chdir(tmp_path)
    for page in ("docs/api.md", "docs/compare.md"):
        namespace: dict[str, Any] = {}
        for block in examples(page, "python"):
            exec(compile(block.replace('"fmn", count=20', '"fmn", count=5'), page, "exec"), namespace)
    captured = capsys.readouterr()
    assert "withstand fgsm, pgd, aa_standard at epsilon 8/255 (Linf)" in captured.out
    assert "is significantly more accurate" in captured.out or "do not differ significantly" in captured.out
