"""Metrics: they are documented, the tracker records them, and Ray's agent exposes them to Prometheus."""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from robust201.core.records import Part, Receipt, UnitFailure
from robust201.planning.bundles import make_bundles
from robust201.planning.plan_file import load_plan
from robust201.runtime.executors import base
from robust201.runtime.metrics import METRICS
from robust201.runtime.progress import Tracker
from robust201.runtime.scheduler import RunTally
from robust201.runtime.sweep import prepare_sweep
from robust201.runtime.work_log import WorkLog
from tests.conftest import REPOSITORY, MakeFields, MakeSweep


class RecordingMetrics:
    """Metrics sink that aggregates values like a monitoring system."""

    def __init__(self) -> None:
        self.values: Counter[tuple[str, ...]] = Counter()

    def record(self, name: str, value: float = 1.0, **tags: str) -> None:
        assert set(tags) == set(METRICS[name].tags), name
        metric_key = (name, *(tags[tag] for tag in METRICS[name].tags))
        if METRICS[name].kind == "gauge":
            self.values[metric_key] = value
        else:
            self.values[metric_key] += value


def test_metrics_are_documented() -> None:
    page = (REPOSITORY / "docs/watching.md").read_text()
    for name, metric in METRICS.items():
        assert re.fullmatch(r"robust201_[a-z_]+", name)
        assert name.endswith("_total") == (metric.kind == "counter")
        tags = ", ".join(metric.tags)
        assert f"| `{name}` | {metric.kind} | {metric.unit} | {tags} | {metric.description} |" in page


def test_tracker_records_events_in_metrics_and_logs(make_sweep: MakeSweep) -> None:
    config = make_sweep(keys={"clean": {}, "fgsm": {"epsilons_255": [1, 8]}}, architectures=[21])
    preview = prepare_sweep(config)
    log, metrics = WorkLog(config.results, "driver"), RecordingMetrics()
    tracker = Tracker(preview.plan, preview.missing, config.results, preview.done, log)
    tracker.attach(metrics=metrics, gpus_per_worker=0.5)
    clean_part, fgsm_part = (Part(unit, unit.strengths, 0, unit.n_images) for unit in load_plan(config.results).units)
    bundle = make_bundles(preview.plan, [clean_part, fgsm_part])[0]
    for event in (
        base.BundleLost(bundle, was_started=True, preempted=True, reason="the machine was preempted"),
        base.BundleLost(bundle, was_started=False, preempted=False, reason="it waited"),
        Receipt(clean_part.unit.id, (0.0,), 0, 4, "a", 2.0),
        Receipt(clean_part.unit.id, (0.0,), 4, 10, "b", 3.0),
        base.BundleLost(bundle, was_started=True, preempted=False, reason="out of luck"),
        UnitFailure(fgsm_part, "killed", "its worker died each time", "", 3),
    ):
        tracker.record_event(event, RunTally(deaths=4, preemptions=7))
    tracker.write(state="finished")
    assert metrics.values.pop(("robust201_seconds_left",)) > 0
    assert metrics.values == {
        ("robust201_preemptions_total",): 1,
        ("robust201_worker_deaths_total",): 1,
        ("robust201_evaluations_total", "digits", "clean"): pytest.approx(1),
        ("robust201_images_total", "digits", "clean"): pytest.approx(10),
        ("robust201_part_seconds", "digits", "clean"): 5,
        ("robust201_failures_total", "digits", "fgsm", "killed"): 1,
        ("robust201_missing_evaluations", "digits", "clean"): pytest.approx(0),
        ("robust201_missing_evaluations", "digits", "fgsm"): 2,
    }
    assert tracker.progress.done_evaluations == 1
    progress = json.loads((config.results / "progress.json").read_text())
    assert (progress["preemptions"], progress["deaths"], progress["gpus_per_worker"]) == (7, 4, 0.5)
    log_lines = [json.loads(line) for line in log.path.read_text().splitlines()]
    assert [(line["event"], line["label"]) for line in log_lines] == [
        ("worker_preempted", "21/digits/clean"),
        ("worker_preempted", "21/digits/fgsm"),
        ("worker_died", "21/digits/fgsm"),  # clean is complete at this point
        ("part_given_up", "21/digits/fgsm"),
    ]


_SCRAPING_PROGRAM = """
import json, os, sys, time, urllib.request
os.environ["RAY_metrics_report_interval_ms"] = "200"
from robust201.planning.loading import parse_config
from robust201.runtime.executors import make_executor
from robust201.runtime.sweep import run_sweep

def scrape(executor):
    port = next(executor._folder.rglob("metrics_export_port_*")).read_text()
    address = f"http://127.0.0.1:{port}/metrics"
    with urllib.request.urlopen(address, timeout=10) as response:
        return response.read().decode()

def count(text, name):
    # Return the sum of a metric over all tags.
    return sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(f"ray_{name}{{"))

config = parse_config(json.loads(sys.stdin.read()), "test")
scraped_texts = []

def make(plan):
    executor = make_executor(plan)
    close = executor.close
    def scrape_and_close():
        end = time.monotonic() + 60
        while not scraped_texts and time.monotonic() < end:
            text = scrape(executor)
            if count(text, "robust201_evaluations_total") >= 6 and count(text, "robust201_part_seconds_count") >= 4:
                scraped_texts.append(text)  # the agent reports with a delay
            time.sleep(0.2)
        close()
    executor.close = scrape_and_close
    return executor

tally = run_sweep(config, make)
assert tally.complete
print(scraped_texts[0])
"""


@pytest.mark.cluster
def test_ray_agent_exposes_metrics_to_prometheus(sweep_fields: MakeFields, tmp_path: Path) -> None:
    fields = sweep_fields(
        keys={"clean": {}, "fgsm": {"epsilons_255": [1, 8]}},
        execution={"executor": "ray", "workers": 1},
        architectures=[0, 21],
    )
    environment = os.environ | {"OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    result = subprocess.run(
        [sys.executable, "-c", _SCRAPING_PROGRAM],
        input=json.dumps(fields),
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        env=environment,
        check=False,
        timeout=200,
    )
    assert result.returncode == 0, result.stderr
    value_by_metric_and_key = {}
    for line in result.stdout.splitlines():
        match = re.fullmatch(r"ray_(robust201_\w+)\{(.*)\} (\S+)", line)
        if match:
            tags = dict(re.findall(r'(\w+)="([^"]*)"', match[2]))
            value_by_metric_and_key[match[1], tags["key"]] = float(match[3])
    assert value_by_metric_and_key["robust201_evaluations_total", "clean"] == 2
    assert value_by_metric_and_key["robust201_evaluations_total", "fgsm"] == 4
    assert value_by_metric_and_key["robust201_images_total", "fgsm"] == 40
    assert value_by_metric_and_key["robust201_part_seconds_count", "fgsm"] == 2
