"""The tutorial's examples run in order, with a shorter AutoAttack and fewer images for curves."""

import shlex
from pathlib import Path
from typing import Any

from tests.project.test_documents import examples

PAGE = "docs/tutorial.md"


def test_tutorial_runs_in_order(robust201, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    model, *blocks = examples(PAGE, "python")
    Path("my_model.py").write_text(model)
    attack = '"autoattack:16/255"'
    short_attack = '{"autoattack": {"epsilons": ["16/255"], "steps": 5, "queries": 20}}'
    assert sum(attack in block for block in blocks) == 1
    namespace: dict[str, Any] = {}
    for block in blocks:
        short_block = block.replace(attack, short_attack).replace("test.labels, count=100)", "test.labels, count=20)")
        exec(compile(short_block, PAGE, "exec"), namespace)
    output = capsys.readouterr().out
    assert "adversarial is significantly more accurate" in output
    assert r"\begin{tabular}{llrr}" in output
    (commands,) = examples(PAGE, "sh")
    for command in commands.replace("--images 100 --out curves", "--images 20 --out curves").splitlines():
        result = robust201(*shlex.split(command)[1:])
        assert result.code == 0, (command, result.err)
    assert {"attacked.png", "curves.pdf", "curves.svg", "results.csv"} <= {path.name for path in tmp_path.iterdir()}
