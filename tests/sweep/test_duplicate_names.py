"""The reader rejects an id that occurs twice."""

import json
from pathlib import Path

import pytest

from robust201.core.errors import ResultsError
from robust201.dataset.reader import Dataset
from tests.support.small_results import write_results

MATRICES = [[[3, 1], [0, 4]], [[2, 2], [0, 4]]]
CONFIDENCES = [{"label": [[1.0]], "argmax": [[1.0]], "prediction": [0.9, None]}] * 2
ROWS = {"accuracy": [0.5, 0.4], "cm": MATRICES, "confidence": CONFIDENCES}


def write_rows_with_ids(folder: Path, measure: str, first_id: str, second_id: str, key: str = "pgd") -> Path:
    """Write a file with three rows; the ids of the first and last rows may be equal."""
    write_results(folder, {key: {}}, measure=measure)
    row_json = json.dumps(ROWS[measure])
    rows = f'{{"{first_id}": {row_json}, "2": {row_json}, "{second_id}": {row_json}}}'
    (folder / f"cifar10/{key}_{measure}.json").write_text(f'{{"cifar10": {{"{key}": {{"{measure}": {rows}}}}}}}')
    return folder


@pytest.mark.parametrize("measure", ROWS)
@pytest.mark.parametrize(("first_id", "second_id"), [("0", "0"), ("0", "00"), ("00", "0")])
@pytest.mark.slow_combinations
def test_duplicate_id_is_rejected_by_all_readers(tmp_path: Path, measure: str, first_id: str, second_id: str) -> None:
    folder = write_rows_with_ids(tmp_path / "dataset", measure, first_id, second_id)
    for read_values in (
        lambda dataset: dataset.value(2, "cifar10", "pgd", measure),
        lambda dataset: dataset.query("cifar10", "pgd", measure),
    ):
        with pytest.raises(ResultsError, match=f"pgd_{measure}.json"):
            read_values(Dataset(folder))
