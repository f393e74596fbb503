"""The reader of datasets rejects an id that occurs twice in a JSON file."""

import pytest

from robust201.core.errors import ResultsError
from robust201.dataset.reader import Dataset
from tests.support.small_results import write_results


@pytest.mark.parametrize("identifier", ["0", "00"])
def test_duplicate_id_is_rejected(tmp_path, identifier):
    folder = write_results(tmp_path, {"pgd": {"0": [0.5, 0.4], "2": [0.5, 0.4], "last": [0.3, 0.2]}})
    path = folder / "cifar10/pgd_accuracy.json"
    path.write_text(path.read_text().replace("last", identifier))
    with pytest.raises(ResultsError, match=r"pgd_accuracy\.json"):
        Dataset(folder).query("cifar10", "pgd", "accuracy")
    with pytest.raises(ResultsError, match=r"pgd_accuracy\.json"):
        Dataset(folder).value(2, "cifar10", "pgd", "accuracy")
