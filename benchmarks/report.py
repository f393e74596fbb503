"""The report at the size of the paper: 6,466 architectures, three datasets, all keys, random but plausible numbers.

    python -m benchmarks.report [--architectures 6466] [--keys 0] [--work DIR]

builds such a dataset, writes its report in a process of its own and opens it in a headless Chromium, if one is
installed. It prints seconds and peak memory of the report, the size of its file, and how
long the page takes to answer (handler and layout, without painting). Confidence and confusion matrices are made for
CIFAR-10 under two keys only: JSON of them all would be 270 GB. `--keys N` exports those of CIFAR-100 under N
corruptions from synthetic shards, as JSON and as Parquet (15 and 3.3 GB a key, and 3 GB of shards meanwhile), writes
the report from either, and says what the whole sweep would take at that rate.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import orjson

from benchmarks.export import N_IMAGES, STRENGTHS, SyntheticPlan, fill, sampling_memory
from benchmarks.headless import dump_page, find_chromium
from robust201.core.records import Unit, unit_id
from robust201.dataset import export_dataset
from robust201.dataset.pool import default_processes
from robust201.images import DATASETS as SPECS
from robust201.reader.result_files import PUBLISHED_DATASETS
from robust201.shards import ShardStore
from robust201.spaces.nasbench201 import cells as nasbench201
from robust201.spaces.nasbench201.neighbourhood import kernel_parameters
from robust201.tasks import CORRUPTIONS, PAPER_KEYS, TASKS

PAPER_ROWS = [TASKS[key] for key in PAPER_KEYS]
NESTED_KEYS = ("clean", "pgd")
LARGE = "cifar100"
"""Dataset whose confidences and confusion matrices `--keys` makes."""

CLEAN_ACCURACY = {"cifar10": 0.92, "cifar100": 0.67, "ImageNet16-120": 0.38}
"""Median clean accuracies of the published dataset, read from its box plots."""

PROBE = """
const times = {};
// In one go, before the page has loaded: drawing is synchronous, and asking for a size makes the browser lay out.
const measure = (name, act) => {
  const rounds = [];
  for (let round = 0; round < 9; round += 1) {
    const start = performance.now();
    act(round);
    document.body.getBoundingClientRect();
    rounds.push(performance.now() - start);
  }
  rounds.sort((a, b) => a - b);
  times[name] = { median: rounds[4], worst: rounds[8] };
};
const change = (menu, place) => {
  menu.selectedIndex = place % menu.options.length;
  menu.dispatchEvent(new Event("change"));
};
measure("an operation of the explorer", (round) => change(menus[round % 6], menus[round % 6].selectedIndex + 1));
for (const block of document.querySelectorAll("section:not([hidden]) figure[data-figure]")) {
  const menu = block.querySelector("select");
  measure("drawing " + block.dataset.figure, () => drawFigure(block));
  if (menu) measure("the menu of " + block.dataset.figure, (round) => change(menu, round + 1));
}
measure("another dataset", (round) => change($("dataset"), round + 1));
const output = document.createElement("pre");
output.id = "measured";
output.textContent = JSON.stringify(times);
document.body.append(output);
"""


class KeysPlan(SyntheticPlan):
    """What export needs of a plan of CIFAR-100 under some corruptions."""

    def __init__(self, n_architectures: int, keys: tuple[str, ...]) -> None:
        self.units = tuple(
            Unit(unit_id("s", i, "c" * 64, key), i, LARGE, key, STRENGTHS, N_IMAGES, key.ljust(32, "0"), "c" * 64)
            for key in keys
            for i in nasbench201.evaluated_indices()[:n_architectures]
        )


def add_measurements(folder: Path, n_architectures: int, keys: tuple[str, ...]) -> None:
    """Give a dataset the accuracies, confidences and confusion matrices of CIFAR-100 under some corruptions."""
    plan, shards, exported = KeysPlan(n_architectures, keys), folder / "shards", folder / "exported"
    store = ShardStore.create(shards)
    fill(store, plan)
    export_dataset(
        plan, store, store.inventory(), exported, formats=("json", "parquet"), processes=default_processes(parquet=True)
    )
    shutil.rmtree(shards)
    for file in (exported / LARGE).iterdir():
        file.replace(folder / LARGE / file.name)
    (exported / "parquet").replace(folder / "parquet")
    shutil.rmtree(exported)


def share_of_sweep(n_keys: int) -> float:
    """How many times the whole sweep's confidences are those that `add_measurements` makes, by entries of matrices."""
    strengths = sum(len(row.parameters().strengths) for row in PAPER_ROWS)
    entries = sum(strengths * SPECS[name].n_classes ** 2 for name in PUBLISHED_DATASETS)
    return entries / (n_keys * len(STRENGTHS) * SPECS[LARGE].n_classes ** 2)


def build_dataset(folder: Path, n_architectures: int) -> None:
    """Write a dataset in the published layout: accuracies everywhere, the rest for CIFAR-10 under `NESTED_KEYS`.

    Args:
        folder: where to.
        n_architectures: of every file.
    """
    rng = np.random.default_rng(0)
    indices = np.array(nasbench201.evaluated_indices()[:n_architectures])
    sizes = np.array([kernel_parameters(nasbench201.specs()[index]) for index in indices])
    folder.mkdir(parents=True, exist_ok=True)
    epsilons = {row.published_key: row.parameters().strengths for row in PAPER_ROWS if row.kind == "attack"}
    (folder / "meta.json").write_text(nasbench201.meta_text(epsilons))
    quality = 0.6 * (sizes / 54) ** 0.5 + 0.4 * rng.random(len(indices))
    for name in PUBLISHED_DATASETS:
        n_images, chance = SPECS[name].n_test, 1 / SPECS[name].n_classes
        clean = chance + (CLEAN_ACCURACY[name] * 1.02 - chance) * quality**0.12
        for row in PAPER_ROWS:
            strengths = np.array(row.parameters().strengths)
            pace = {"clean": 0.0, "attack": 1.2, "corruption": 0.12}[row.kind] * (0.5 + rng.random(len(indices)))
            accuracy = clean[:, None] * np.exp(-pace[:, None] * strengths)
            counts = np.round(n_images * accuracy + 20 * rng.standard_normal(accuracy.shape)).clip(0, n_images)
            _write(folder, name, row.published_key, "accuracy", indices, counts / n_images)
            if name == PUBLISHED_DATASETS[0] and row.key in NESTED_KEYS:
                _write_nested(folder, name, row.published_key, indices, counts.astype(int), n_images)
    held = {row.published_key: row.parameters().strengths for row in PAPER_ROWS}
    sweep = {"format": 1, "robust201": "synthetic", "sweep": {}, "measurements": ["accuracy", "confidence", "cm"]}
    (folder / "sweep.json").write_text(json.dumps(sweep | {"strengths": dict.fromkeys(PUBLISHED_DATASETS, held)}))


def _write(folder: Path, name: str, key: str, measure: str, indices: np.ndarray, values: np.ndarray) -> None:
    rows = values[:, 0] if key == "clean" else values
    payload = {name: {key: {measure: dict(zip(map(str, indices), rows.tolist(), strict=True))}}}
    (folder / name).mkdir(exist_ok=True)
    (folder / name / f"{key}_{measure}.json").write_text(json.dumps(payload))


def _write_nested(folder: Path, name: str, key: str, indices: np.ndarray, counts: np.ndarray, n_images: int) -> None:
    n_classes = SPECS[name].n_classes
    of_class = n_images // n_classes
    with (
        (folder / name / f"{key}_cm.json").open("wb") as cm_file,
        (folder / name / f"{key}_confidence.json").open("wb") as confidence_file,
    ):
        files = {"cm": cm_file, "confidence": confidence_file}
        for measure, file in files.items():
            file.write(orjson.dumps({name: {key: {measure: {}}}})[:-4])
        for place, (index, row) in enumerate(zip(indices.tolist(), counts, strict=True)):
            right = row[:, None] // n_classes
            wrong = (of_class - right) // (n_classes - 1)
            cm = np.repeat(wrong, n_classes, axis=1)[:, None, :].repeat(n_classes, axis=1)
            cm[:, range(n_classes), range(n_classes)] = right
            shares = (cm / cm.sum(axis=-1, keepdims=True)).round(3).tolist()
            confidence = [{"label": share, "argmax": share, "prediction": [0.9, 0.6]} for share in shares]
            for measure, value in (("cm", cm.tolist()), ("confidence", confidence)):
                text = orjson.dumps({str(index): value[0] if key == "clean" else value})
                files[measure].write((b"," if place else b"") + text[1:-1])
        for file in files.values():
            file.write(b"}}}}")


def write_and_tell(dataset: Path, out: Path) -> None:
    """Write a report and print its seconds, its peak memory, and the size of its file."""
    from robust201.figures.report import write_report
    from robust201.reader.dataset import RobustnessDataset

    with sampling_memory() as peak:
        start = time.perf_counter()
        write_report(RobustnessDataset(dataset), out)
        seconds = time.perf_counter() - start
    print(f"report: {seconds:.1f} s, peak memory {peak['all']:.2f} GB")
    print(f"file: {out.stat().st_size / 1e6:.2f} MB")


def write_elsewhere(dataset: Path, out: Path) -> float:
    """Write a report in a process of its own, whose memory is the report's; give its seconds."""
    start = time.perf_counter()
    command = [sys.executable, "-m", "benchmarks.report", "--write", str(dataset), str(out)]
    subprocess.run(command, check=True)
    return time.perf_counter() - start


def measure_keys(work: Path, n_architectures: int, n_keys: int, seconds_without: float) -> None:
    """Write reports of large measurements from Parquet and from JSON, and say what the whole sweep would take."""
    dataset = work / "dataset"
    if not (dataset / "parquet").is_dir():
        start = time.perf_counter()
        add_measurements(dataset, n_architectures, tuple(CORRUPTIONS)[:n_keys])
        print(f"{n_keys} keys of {LARGE}: exported in {time.perf_counter() - start:.1f} s")
    for form, files in (("Parquet", dataset / "parquet"), ("JSON", dataset / LARGE)):
        n_bytes = sum(file.stat().st_size for file in files.rglob("*") if file.is_file())
        print(f"from {form}, {n_bytes / 1e9:.1f} GB:")
        seconds = write_elsewhere(dataset, work / f"{form}.html")
        more = (seconds - seconds_without) * share_of_sweep(n_keys) * 6466 / n_architectures
        whole = f"{(seconds_without + more) / 60:.1f} minutes" if more > 0 else "too little was measured to tell"
        print(f"  the whole sweep at this rate: {whole}")
        if form == "Parquet":
            (dataset / "parquet").rename(work / "parquet")  # so that the JSON files are what is left to read
    (work / "parquet").rename(dataset / "parquet")


def measure_page(page: Path) -> None:
    """Open the page with the probe in it, and print what it measured."""
    probed = page.with_name("probed.html")
    text = page.read_text()
    probed.write_text(text.replace("</body>", f"<script>{PROBE}</script></body>"))
    if find_chromium() is None:
        print("page: no Chromium is installed")
        return
    start = time.perf_counter()
    content, _ = dump_page(probed, until="document.getElementById('measured')")
    found = re.search(r'<pre id="measured">(.*?)</pre>', content)
    print(f"page: opened, driven and closed in {time.perf_counter() - start:.1f} s")
    for name, times in json.loads(found[1]).items() if found else ():
        print(f"  {name}: {times['median']:.0f} ms, at most {times['worst']:.0f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--architectures", type=int, default=6466)
    parser.add_argument("--keys", type=int, default=0, metavar="N", help="keys of CIFAR-100 with all measurements")
    parser.add_argument("--work", type=Path, help="keep the dataset and the page in this folder")
    parser.add_argument("--write", nargs=2, type=Path, metavar=("DATASET", "OUT"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.write:
        write_and_tell(*arguments.write)
        return
    with tempfile.TemporaryDirectory() as temporary:
        work = arguments.work or Path(temporary)
        if not (work / "dataset" / "meta.json").is_file():
            start = time.perf_counter()
            build_dataset(work / "dataset", arguments.architectures)
            print(f"dataset: {arguments.architectures:,} architectures, built in {time.perf_counter() - start:.1f} s")
        seconds = write_elsewhere(work / "dataset", work / "report.html")
        measure_page(work / "report.html")
        if arguments.keys:
            measure_keys(work, arguments.architectures, arguments.keys, seconds)


if __name__ == "__main__":
    main()
