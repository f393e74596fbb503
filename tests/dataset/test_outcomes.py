"""Per-image outcomes and the table of images: writing, and reading with robust201 and other libraries."""

import shutil
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from robust201.core.errors import ArchitectureError, ConfigError, ResultsError
from robust201.dataset.reader import Dataset
from tests.support.fabricated import (
    LABELS,
    N_IMAGES,
    FabricatedPlan,
    export,
    make_images,
    make_plan,
    make_unit,
    make_values,
)

ARCHITECTURES = (0, 2, 10, 309, 991)
MEASUREMENTS = ("accuracy", "cm", "predictions")


def write_export(out: Path, plan: FabricatedPlan | None = None, *, first_row: int = 7, outcomes: str = "bits") -> Path:
    plan = plan or make_plan(ARCHITECTURES, measurements=MEASUREMENTS)
    export(
        out,
        plan,
        formats=("json", "parquet"),
        outcomes=outcomes,
        images_of=lambda dataset: make_images(dataset, first_row),
    )
    return out


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_export(tmp_path_factory.mktemp("outcomes"))


def make_expected_outcomes(architecture: int, key: str, strength: float) -> np.ndarray:
    return make_values(make_unit(architecture, "cifar10", key, (strength,)), strength)["predictions"] == LABELS


def test_outcomes_match_measured_predictions(folder: Path) -> None:
    dataset = Dataset(folder)
    for key, strength in (("pgd", 8.0), ("pgd@Linf", 0.5), ("fog", 3.0), ("clean", 0.0)):
        outcomes = dataset.outcomes("cifar10", key, strength)
        assert (outcomes.architectures, outcomes.n_images) == (ARCHITECTURES, N_IMAGES)
        paper_key = key.removesuffix("@Linf")
        expected_outcomes = [make_expected_outcomes(cell, paper_key, strength) for cell in ARCHITECTURES]
        np.testing.assert_array_equal(outcomes.correct, expected_outcomes)
    np.testing.assert_array_equal(
        dataset.outcomes("cifar10", "fgsm", 0).packed, dataset.outcomes("cifar10", "clean").packed
    )
    selected_outcomes = outcomes.of([309, 0])
    np.testing.assert_array_equal(selected_outcomes.correct, outcomes.correct[[3, 0]])
    with pytest.raises(ArchitectureError, match="the architecture has no outcomes"):
        selected_outcomes.of([2])
    with pytest.raises(ConfigError, match=r"a strength is needed\. Choose one of 0\.5, 1, 8"):
        dataset.outcomes("cifar10", "pgd")


def test_images_method_returns_rows_labels_and_hashes(folder: Path) -> None:
    frame = Dataset(folder).images("cifar10")
    images = make_images("cifar10")
    assert frame["row"].tolist() == images.indices.tolist()
    assert frame["label"].tolist() == LABELS.tolist()
    assert frame["sha256"].nunique() == N_IMAGES
    assert list(pd.read_parquet(folder / "images").columns) == ["dataset", "position", "row", "label", "sha256"]


def test_outcomes_can_be_unpacked_with_other_libraries(folder: Path) -> None:
    expected_outcomes = np.array([make_expected_outcomes(cell, "pgd", 8.0) for cell in ARCHITECTURES])
    filters = [("dataset", "==", "cifar10"), ("key", "==", "pgd"), ("strength", "==", 8.0)]
    frame = pd.read_parquet(folder / "parquet", filters=filters).sort_values("architecture")
    packed = np.stack([np.frombuffer(bits, "uint8") for bits in frame.correct_bits])
    np.testing.assert_array_equal(np.unpackbits(packed, axis=1, count=N_IMAGES), expected_outcomes)
    query = f"'{folder}/parquet/**/*.parquet' where key = 'pgd' and strength = 8 order by architecture"
    counts_and_bits = duckdb.sql(
        f"select bit_count(correct_bits::bit), get_bit(correct_bits::bit, 11) from {query}"
    ).fetchall()
    assert counts_and_bits == [(outcomes.sum(), int(outcomes[11])) for outcomes in expected_outcomes]


def test_export_writes_bits_and_also_predictions_if_outcomes_are_classes(folder: Path, tmp_path: Path) -> None:
    folder_with_classes = write_export(tmp_path / "both", outcomes="classes")
    measurements = [Dataset(root).sweep["measurements"] for root in (folder, folder_with_classes)]
    assert measurements == [["accuracy", "cm"], [*MEASUREMENTS]]
    file_names = [{path.name for path in (root / "cifar10").iterdir()} for root in (folder, folder_with_classes)]
    assert file_names[1] - file_names[0] == {f"{key}_predictions.json" for key in ("clean", "fgsm", "pgd", "fog")}
    columns = [
        pq.read_schema(root / "parquet/dataset=cifar10/key=pgd/part-0.parquet").names
        for root in (folder, folder_with_classes)
    ]
    assert [name for name in columns[1] if name not in columns[0]] == ["predictions"]
    assert "correct_bits" in columns[0]
    assert "`images/dataset=<dataset>/part-0.parquet`" in (folder / "README.md").read_text()


def rewrite_column(path: Path, column_name: str, values: list) -> None:
    table = pq.read_table(path)
    column_index = table.schema.get_field_index(column_name)
    pq.write_table(
        table.set_column(
            column_index, table.schema.field(column_index), pa.array(values, table.schema.field(column_index).type)
        ),
        path,
    )


@pytest.mark.parametrize("fault", ["count", "size", "positions"])
def test_outcomes_method_rejects_damaged_bits_and_image_positions(folder: Path, tmp_path: Path, fault: str) -> None:
    shutil.copytree(folder, tmp_path / "copy")
    path = tmp_path / "copy/parquet/dataset=cifar10/key=pgd/part-0.parquet"
    bits = pq.read_table(path)["correct_bits"].to_pylist()
    if fault == "count":
        rewrite_column(path, "correct_bits", [bytes([packed_bits[0] ^ 0x80, *packed_bits[1:]]) for packed_bits in bits])
    elif fault == "size":
        rewrite_column(path, "correct_bits", [packed_bits + b"\0" for packed_bits in bits])
    else:
        path = tmp_path / "copy/images/dataset=cifar10/part-0.parquet"
        rewrite_column(path, "position", list(range(N_IMAGES))[::-1])
    with pytest.raises(ResultsError, match=r"part-0\.parquet: "):
        Dataset(tmp_path / "copy").outcomes("cifar10", "pgd", 8.0)


def test_outcomes_of_overlay_require_equal_images(folder: Path, tmp_path: Path) -> None:
    second_folder = write_export(tmp_path / "more", make_plan((0, 9), keys=("clean", "pgd"), measurements=MEASUREMENTS))
    outcomes = Dataset(folder, second_folder).outcomes("cifar10", "pgd", 8.0)
    assert outcomes.architectures == (0, 2, 9, 10, 309, 991)
    np.testing.assert_array_equal(outcomes.correct[2], make_expected_outcomes(9, "pgd", 8.0))
    folder_with_other_images = write_export(
        tmp_path / "other", make_plan((9,), keys=("pgd",), measurements=MEASUREMENTS), first_row=8
    )
    # Outcomes of several keys may be combined, so all folders must have the same images.
    for key, strength in (("pgd", 8.0), ("clean", 0.0)):
        with pytest.raises(ResultsError, match="the images differ from those of"):
            Dataset(folder, folder_with_other_images).outcomes("cifar10", key, strength)
    with pytest.raises(ResultsError, match="the images differ from those of"):
        Dataset(folder, folder_with_other_images).images("cifar10")
