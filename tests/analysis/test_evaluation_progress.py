"""Progress of `evaluate`: a bar on a terminal, lines elsewhere, and no output if switched off."""

import re
import time

import pytest

import robust201
from robust201.analysis import evaluation_progress
from robust201.analysis.evaluation_progress import EvaluationProgress, shown_progress
from tests.support.tiny_networks import NORMALISATION, TinyNetwork, tiny_images

IMAGES = tiny_images()


def test_describe_includes_key_epsilons_stage_and_time(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: seconds[0])
    progress = EvaluationProgress(n_evaluations=4, _start_time=seconds[0])
    assert progress.describe() == "checking the network, 0:00:00 elapsed"
    progress.begin_key("pgd", (1.0, 8.0))
    seconds[0] += 30
    assert progress.describe() == "pgd at 1/255 to 8/255, 0 of 4 evaluations done, 0:00:30 elapsed"
    progress.n_evaluations_done = 2
    progress.begin_key("aa_standard", (8.0,))
    progress.begin_stage(2, "aa_apgd-t", 10)
    stage = "aa_standard at 8/255, attack 2 (aa_apgd-t on 10 images)"
    assert progress.describe() == f"{stage}, 2 of 4 evaluations done, 0:00:30 elapsed"
    progress.begin_key("fog", (5.0,))
    assert progress.describe() == "fog at severity 5, 2 of 4 evaluations done, 0:00:30 elapsed"


@pytest.mark.parametrize("is_shown", [True, False])
def test_progress_without_a_terminal_is_printed_as_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], is_shown: bool
) -> None:
    monkeypatch.setattr(evaluation_progress, "LINE_SECONDS", 0.01)
    keys = ["clean", {"pgd": {"epsilons": ["1/255", "8/255"]}}]
    options = {"normalisation": NORMALISATION, "progress": is_shown}
    robust201.evaluate(TinyNetwork(), IMAGES.images, IMAGES.labels, keys, **options)
    captured = capsys.readouterr()
    pattern = r"pgd at 1/255 to 8/255, \d of 3 evaluations done, 0:00:\d\d elapsed"
    assert any(re.fullmatch(pattern, line) for line in captured.err.splitlines()) == is_shown, captured.err
    assert captured.out == ""


def test_progress_lines_stop_after_a_failed_evaluation(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(evaluation_progress, "LINE_SECONDS", 0.01)

    def fail_late() -> None:
        time.sleep(0.05)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), shown_progress(option=True):
        fail_late()
    assert "checking the network" in capsys.readouterr().err
    time.sleep(0.03)
    assert capsys.readouterr().err == ""
