"""The report at the size of the paper: 6,466 architectures, three datasets, all keys, random but plausible numbers.

    python -m benchmarks.report [--architectures 6466] [--cifar100 0] [--work DIR]

builds such a dataset, writes its report in a process of its own and opens it in a headless Chromium, if one is
installed. It prints seconds and peak memory of the report, the size of its file, and how long the page takes to answer
(handler and layout, without painting). Confidence and confusion matrices are made for CIFAR-10 under two keys only:
JSON of them all would be 270 GB. `--cifar100 N` makes those of CIFAR-100 under PGD too, for the first N architectures
(some 1.5 MB each): with a few values of N, the peak shows what of it grows with the file.
"""

import argparse
import json
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import orjson

from benchmarks.headless import dump_page, find_chromium
from pipeline.analysis.cells import kernel_parameters
from pipeline.analysis.reader import DATASETS
from pipeline.datasets import DATASETS as SPECS
from pipeline.perturbations import PERTURBATIONS
from pipeline.spaces import nasbench201

NESTED_KEYS = ("clean", "pgd")
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
const told = document.createElement("pre");
told.id = "measured";
told.textContent = JSON.stringify(times);
document.body.append(told);
"""


def build_dataset(folder: Path, n_architectures: int, n_cifar100: int) -> None:
    """Write a dataset in the published layout: accuracies everywhere, the rest for CIFAR-10 under `NESTED_KEYS`.

    Args:
        folder: where to.
        n_architectures: of every file.
        n_cifar100: architectures of the confidences and confusion matrices of CIFAR-100 under PGD; 0 for no such file.
    """
    rng = np.random.default_rng(0)
    indices = np.array(nasbench201.evaluated_indices()[:n_architectures])
    sizes = np.array([kernel_parameters(nasbench201.specs()[index]) for index in indices])
    folder.mkdir(parents=True, exist_ok=True)
    epsilons = {row.published_key: row.parameters().strengths for row in PERTURBATIONS.values() if row.kind == "attack"}
    (folder / "meta.json").write_text(nasbench201.meta_text(epsilons))
    quality = 0.6 * (sizes / 54) ** 0.5 + 0.4 * rng.random(len(indices))
    for name in DATASETS:
        n_images, chance = SPECS[name].n_test, 1 / SPECS[name].n_classes
        clean = chance + (CLEAN_ACCURACY[name] * 1.02 - chance) * quality**0.12
        for row in PERTURBATIONS.values():
            strengths = np.array(row.parameters().strengths)
            pace = {"clean": 0.0, "attack": 1.2, "corruption": 0.12}[row.kind] * (0.5 + rng.random(len(indices)))
            accuracy = clean[:, None] * np.exp(-pace[:, None] * strengths)
            counts = np.round(n_images * accuracy + 20 * rng.standard_normal(accuracy.shape)).clip(0, n_images)
            _write(folder, name, row.published_key, "accuracy", indices, counts / n_images)
            if name == DATASETS[0] and row.key in NESTED_KEYS:
                _write_nested(folder, name, row.published_key, indices, counts.astype(int), n_images)
            if name == "cifar100" and row.key == "pgd" and n_cifar100:
                chosen = slice(n_cifar100)
                _write_nested(folder, name, row.published_key, indices[chosen], counts[chosen].astype(int), n_images)


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
    """Write a report and print its seconds and this process's peak memory."""
    from pipeline.analysis.reader import RobustnessDataset
    from pipeline.analysis.report import write_report

    start = time.perf_counter()
    write_report(RobustnessDataset(dataset), out)
    seconds = time.perf_counter() - start
    print(f"report: {seconds:.1f} s, peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.2f} GB")
    print(f"file: {out.stat().st_size / 1e6:.2f} MB")


def measure_page(page: Path) -> None:
    """Open the page with the probe in it, and print what it measured."""
    probed = page.with_name("probed.html")
    text = page.read_text()
    probed.write_text(text.replace("</body>", f"<script>{PROBE}</script></body>"))
    if find_chromium() is None:
        print("page: no Chromium is installed")
        return
    start = time.perf_counter()
    content, _ = dump_page(probed, budget_ms=None)
    found = re.search(r'<pre id="measured">(.*?)</pre>', content)
    print(f"page: opened, driven and closed in {time.perf_counter() - start:.1f} s")
    for name, times in json.loads(found[1]).items() if found else ():
        print(f"  {name}: {times['median']:.0f} ms, at most {times['worst']:.0f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--architectures", type=int, default=6466)
    parser.add_argument("--cifar100", type=int, default=0, metavar="N", help="architectures of CIFAR-100's large files")
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
            build_dataset(work / "dataset", arguments.architectures, arguments.cifar100)
            largest = max((work / "dataset").rglob("*.json"), key=lambda path: path.stat().st_size)
            print(f"largest file: {largest.name} of {largest.parent.name}, {largest.stat().st_size / 1e6:,.0f} MB")
            print(f"dataset: {arguments.architectures:,} architectures, built in {time.perf_counter() - start:.1f} s")
        # A process of its own, so that its peak memory is the report's.
        command = [sys.executable, "-m", "benchmarks.report", "--write", work / "dataset", work / "report.html"]
        subprocess.run([str(part) for part in command], check=True)
        measure_page(work / "report.html")


if __name__ == "__main__":
    main()
