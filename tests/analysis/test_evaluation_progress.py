"""Progress of `evaluate`: its text, lines without a terminal, and no output if switched off."""

import re
import time

import pytest

import robust201
from robust201.analysis import evaluation_progress
from robust201.analysis.evaluation_progress import EvaluationProgress, shown_progress
from robust201.tasks import TASKS
from tests.support.tiny_networks import NORMALISATION, TinyNetwork, tiny_images

IMAGES = tiny_images()


class Clock:
    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", clock)
    return clock


def test_progress_description_includes_key_epsilons_images_and_time(clock):
    progress = EvaluationProgress(n_images=20, n_evaluations=4)
    assert progress.describe() == "checking the network, 0:00:00 elapsed"
    progress.costs, progress.stage_costs = {"pgd": 400.0, "aa_standard": 800.0, "fog": 100.0}, {"aa_standard": (10, 30)}
    done = "0 of 4 evaluations done"
    progress.begin_key(TASKS["pgd"], (1.0, 8.0))
    assert progress.describe() == f"pgd at 1/255 to 8/255, {done}, 0:00:00 elapsed, time left unknown"
    progress.add_passes(100)
    clock.seconds += 30
    assert progress.describe() == f"pgd at 1/255 to 8/255: 25%, {done}, 0:00:30 elapsed, about 0:06:00 left"
    progress.begin_key(TASKS["aa_standard"], (8.0,))
    progress.begin_stage(1, "aa_apgd-ce", 20)
    stage = "aa_standard at 8/255, attack 1 of 2 (aa_apgd-ce on 100% of the images)"
    assert progress.describe() == f"{stage}, {done}, 0:00:30 elapsed, about 0:04:30 left"
    progress.add_passes(200)
    progress.begin_stage(2, "aa_apgd-t", 10)  # half of the images are fooled
    stage = "aa_standard at 8/255, attack 2 of 2 (aa_apgd-t on 50% of the images)"
    assert progress.describe() == f"{stage}: 40%, {done}, 0:00:30 elapsed, about 0:00:40 left"
    progress.begin_key(TASKS["fog"], (5.0,))
    progress.add_passes(150)
    assert progress.describe() == f"fog at severity 5: 99%, {done}, 0:00:30 elapsed, longer than estimated"


@pytest.mark.parametrize("is_shown", [True, False])
def test_progress_without_a_terminal_is_printed_as_lines(monkeypatch, capsys, is_shown):
    monkeypatch.setattr(evaluation_progress, "LINE_SECONDS", 0.01)
    keys = ["clean", {"pgd": {"epsilons": ["1/255", "8/255"]}}]
    options = {"normalisation": NORMALISATION, "progress": is_shown}
    robust201.evaluate(TinyNetwork(), IMAGES.images, IMAGES.labels, keys, **options)
    captured = capsys.readouterr()
    pattern = (
        r"pgd at 1/255 to 8/255(: \d+%)?, \d of 3 evaluations done, 0:00:\d\d elapsed, "
        r"(time left unknown|about .* left|longer than estimated)"
    )
    assert any(re.fullmatch(pattern, line) for line in captured.err.splitlines()) == is_shown, captured.err
    assert captured.out == ""


def test_progress_lines_stop_after_a_failed_evaluation(monkeypatch, capsys):
    monkeypatch.setattr(evaluation_progress, "LINE_SECONDS", 0.01)

    def fail_late() -> None:
        time.sleep(0.05)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), shown_progress(option=True):
        fail_late()
    assert "checking the network" in capsys.readouterr().err
    time.sleep(0.03)
    assert capsys.readouterr().err == ""
