"""Parts that generate corrupted images generate only required images, and need the planned versions of libraries."""

import shutil
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from robust201.corruptions import folder as corruption_folder
from robust201.corruptions.frost_textures import FrostTextures
from robust201.images.corrupted import CorruptedStore
from robust201.run import images as images_module
from robust201.run.images import CorruptedImages, ImagePart
from robust201.run.sweep import prepare_run
from robust201.store.folder import ResultsFolder
from robust201.sweep.facts import load_plan
from robust201.sweep.filters import EVERYTHING, Filters
from robust201.sweep.inputs import Inputs
from tests.conftest import read_tree
from tests.support.runs import export_bytes, read_state, run_inline, save_plan

KEYS = {"clean": {}, "brightness": {"severities": [1, 5]}, "fog": {"severities": [1, 5]}}


@pytest.fixture
def config(make_sweep):
    """Return a sweep whose corrupted images are generated in the results folder."""
    datasets = {"digits": {"corruptions": {"source": "generated"}}}
    return make_sweep(keys=KEYS, datasets=datasets, images={"count": 20, "seed": 0})


def generated_keys(config):
    return sorted({path.parent.name.split("-")[1] for path in (config.results / "corruptions").glob("*-*/*.sha256")})


def open_images(config):
    return CorruptedImages(config, load_plan(config.results)[1], Inputs(config))


@pytest.mark.parametrize(
    ("keys", "expected"), [(("clean",), []), (("clean", "fog"), ["fog"]), (None, ["brightness", "fog"])]
)
def test_filtered_run_generates_selected_images_only(config, keys, expected):
    tally = run_inline(config, Filters(keys=keys))
    assert (tally.is_complete, tally.n_done) == (True, 2 * (1 + 2 * len(expected)))
    assert generated_keys(config) == expected


def test_image_parts_come_first(config):
    with prepare_run(config, EVERYTHING, lambda _line: None) as work:
        parts = list(work.parts)
    assert [part.id[2:] for part in parts[:4]] == [("brightness", 1), ("brightness", 5), ("fog", 1), ("fog", 5)]
    assert not any(isinstance(part, ImagePart) for part in parts[4:])


def test_worker_generates_absent_images_and_finished_sweep_needs_none(config, tmp_path):
    run_inline(config)
    expected, images = export_bytes(config, tmp_path / "first"), read_tree(config.results / "corruptions")
    shutil.rmtree(config.results / "corruptions")
    assert run_inline(config).n_parts == 0
    assert generated_keys(config) == []
    folder = ResultsFolder.open(config.results)
    for path in (config.results / "shards").rglob("*.parquet"):
        path.unlink()
    with prepare_run(config, Filters(keys=("fog",)), lambda _line: None) as work:
        worker = work.start_worker()
        for part in list(work.state.missing_parts()):  # without the image parts
            assert worker.compute(part, lambda: False).failure == ""
        worker.close()
    run_inline(config)
    assert export_bytes(config, tmp_path / "second") == expected
    assert {name: content for name, content in read_tree(folder.root / "corruptions").items() if "npy" in name} == {
        name: content for name, content in images.items() if "npy" in name
    }


def test_workers_that_generate_the_same_images_leave_one_file(config):
    run_inline(config, Filters(keys=("clean",)))
    part = ImagePart("digits", "fog", 5)
    corrupted_images = [open_images(config) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda images: images.make(part), corrupted_images))
    assert sorted(path.name for path in corrupted_images[0].path(part).parent.iterdir()) == ["5.npy", "5.sha256"]
    assert run_inline(config).is_complete


def test_single_severities_equal_those_of_a_folder_with_all_severities(config, tmp_path):
    images = Inputs(config).images("digits")
    frost = FrostTextures.of("none", ())
    corruption_folder.generate_corruptions(tmp_path / "all", images, keys=["fog"], seed=0, frost=frost)
    expected = CorruptedStore(tmp_path / "all", images, rows=np.arange(len(images)), n_images=len(images))
    save_plan(config)
    store = open_images(config).open_store("digits", "fog")
    for severity in (1, 3):
        pixels = store("fog", severity, images.indices[::3])
        assert np.array_equal(pixels, expected("fog", severity, images.indices[::3]))
        assert store.digest("fog", [severity]) == expected.digest("fog", [severity])
    (folder,) = (config.results / "corruptions").iterdir()
    assert sorted(path.stem for path in folder.glob("*.npy")) == ["1", "3"]


@pytest.mark.parametrize("damage", [b"", b"\x93NUMPY", None])
def test_damaged_images_are_generated_again(config, damage):
    save_plan(config)
    part, indices = ImagePart("digits", "fog", 5), Inputs(config).images("digits").indices
    expected = open_images(config).open_store("digits", "fog")("fog", 5, indices)
    path = open_images(config).path(part)
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]) if damage is None else damage)
    assert np.array_equal(open_images(config).open_store("digits", "fog")("fog", 5, indices), expected)
    assert path.read_bytes() == content


def test_interrupted_images_are_generated_again(config, monkeypatch):
    corrupt = corruption_folder.corrupt

    def corrupt_until_interrupted(images, key, severity, **options):
        if key == "fog" and severity == 5:
            raise SystemError("killed")
        return corrupt(images, key, severity, **options)

    with monkeypatch.context() as patch:
        patch.setattr(corruption_folder, "corrupt", corrupt_until_interrupted)
        tally = run_inline(config)
    assert {outcome.failure for outcome in tally.failures} == {"SystemError: killed"}
    assert generated_keys(config) == ["brightness", "fog"]  # fog at severity 1
    assert read_state(config.results).n_done == 6
    assert run_inline(config).is_complete


def test_worker_with_other_library_versions_generates_no_images(config, monkeypatch):
    with prepare_run(config, Filters(keys=("fog",)), lambda _line: None) as work, monkeypatch.context() as patch:
        patch.setattr(images_module, "library_versions", lambda: {"numpy": "0.1"})
        worker = work.start_worker()
        failures = {worker.compute(part, lambda: False).failure for part in list(work.parts)}
        worker.close()
    (failure,) = failures
    assert failure.startswith("DatasetError")
    assert "0.1" in failure
    assert generated_keys(config) == []
