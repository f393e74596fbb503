"""The report's gallery of the images that perturbations break most and least often.

Its counts match per-image outcomes, and thumbnails show only the evaluated pixels.
"""

import base64
import hashlib
import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from robust201.analysis.broken_images import find_broken_images, weakest_breaking_strengths
from robust201.analysis.dataset_results import read_results
from robust201.core.errors import DatasetError
from robust201.figures.image_cards import _thumbnail
from robust201.figures.report import write_report
from robust201.reader.dataset import RobustnessDataset
from tests.reader.test_outcomes import write_export
from tests.support.fabricated import export, make_images, make_plan
from tests.support.small_results import results_of, write_results

KEYS = ("fgsm", "pgd", "fog")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_export(tmp_path_factory.mktemp("outcomes"))


def test_broken_images_are_ordered_by_fraction_of_breaking_evaluations(folder: Path) -> None:
    data = RobustnessDataset(folder)
    (results,) = read_results(data)
    broken_images = find_broken_images(results)
    assert broken_images is not None
    clean = data.outcomes("cifar10", "clean").correct
    correct_under_attack = [
        data.outcomes("cifar10", key, strength).correct for key in KEYS for strength in results.strengths(key)
    ]
    is_broken = np.array([clean & ~correct for correct in correct_under_attack])
    n_clean_correct = clean.sum(axis=0)
    images = broken_images.images
    assert sorted(images.index) == np.flatnonzero(2 * n_clean_correct >= len(clean)).tolist()
    for position, row in images.iterrows():
        assert row["broken_fraction"] == pytest.approx(
            is_broken[:, :, position].sum() / (len(correct_under_attack) * n_clean_correct[position])
        )
        assert row["row"] == data.images("cifar10")["row"][position]
    assert images["broken_fraction"].is_monotonic_decreasing
    # The evaluation with index 5 is PGD at 8/255.
    assert (
        broken_images.n_networks_by_evaluation(int(images.index[0]))["pgd", 8.0]
        == is_broken[5, :, images.index[0]].sum()
    )
    assert not set(broken_images.most_broken.index) & set(broken_images.least_broken.index)
    assert broken_images.least_broken["broken_fraction"].iloc[0] == images["broken_fraction"].iloc[-1]


def test_weakest_breaking_strengths_break_the_image_for_half_of_the_networks() -> None:
    n_networks_by_evaluation = {("pgd", 1.0): 1, ("pgd", 2.0): 2, ("pgd", 8.0): 4, ("fog", 1.0): 1}
    assert weakest_breaking_strengths(n_networks_by_evaluation, 4) == {"pgd": 2.0}


def test_report_has_no_gallery_without_outcomes(tmp_path: Path) -> None:
    write_results(tmp_path, {"clean": {"0": 0.9}, "pgd": {"0": [0.5, 0.1]}})
    assert find_broken_images(results_of(tmp_path)) is None
    page = write_report(RobustnessDataset(tmp_path), tmp_path / "page.html").read_text()
    assert "Single images" not in page


def test_report_thumbnails_require_the_evaluated_pixels(folder: Path, tmp_path: Path) -> None:
    data = RobustnessDataset(folder)
    page_without_images = write_report(data, tmp_path / "without_images.html").read_text()
    assert "Most often broken" in page_without_images
    assert "data:image/png" not in page_without_images
    images = make_images("cifar10")
    page = write_report(data, tmp_path / "page.html", images=images).read_text()
    (results,) = read_results(data)
    broken_images = find_broken_images(results)
    assert broken_images is not None
    assert page.count("data:image/png") == len(broken_images.most_broken) + len(broken_images.least_broken)
    inverted_images = replace(images, images=255 - images.images)
    with pytest.raises(DatasetError, match="expected the evaluated image"):
        write_report(data, tmp_path / "inverted.html", images=inverted_images)
    shifted_images = replace(images, indices=images.indices + 1)
    with pytest.raises(DatasetError, match="expected the evaluated image"):
        write_report(data, tmp_path / "shifted.html", images=shifted_images)


def test_thumbnail_shows_grey_images() -> None:
    grey_images = make_images("cifar10")
    grey_images = replace(grey_images, images=grey_images.images[:, :1])
    row = int(grey_images.indices[0])
    image_tag = _thumbnail(grey_images, row, hashlib.sha256(grey_images.images[0].tobytes()).hexdigest(), "cat")
    with Image.open(io.BytesIO(base64.b64decode(image_tag.split("base64,")[1].split('"')[0]))) as picture:
        factor = picture.height // grey_images.images.shape[2]
        thumbnail = np.asarray(picture)[::factor, ::factor]
    np.testing.assert_array_equal(thumbnail, grey_images.images[0, 0])


def test_report_rejects_images_for_several_datasets(tmp_path: Path) -> None:
    export(tmp_path / "two", make_plan([0, 2], ["clean", "pgd"], ("cifar10", "digits")))
    with pytest.raises(DatasetError, match="a gallery of images needs a single dataset"):
        write_report(RobustnessDataset(tmp_path / "two"), tmp_path / "page.html", images=make_images("cifar10"))
