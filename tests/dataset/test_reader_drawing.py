"""Drawing of cells, with the interface of the published helper class."""

import pytest

from robust201.core.errors import ArchitectureError
from robust201.dataset.reader import Dataset
from robust201.networks.nb201 import cells as nasbench201
from tests.support.fabricated import export, make_plan


@pytest.fixture(scope="module")
def dataset(tmp_path_factory) -> Dataset:
    out = tmp_path_factory.mktemp("drawn")
    export(out, make_plan([309], ["clean"]))
    return Dataset(out)


def test_draw_arch_draws_six_labelled_edges(dataset):
    short_names = {"none": "none", "skip_connect": "skip", "avg_pool_3x3": "avg pool 3×3"}
    short_names |= {
        f"nor_conv_{kernel_size}x{kernel_size}": f"conv {kernel_size}×{kernel_size}" for kernel_size in (1, 3)
    }
    edges = [short_names[operation] for operation in nasbench201.parse(dataset.id_to_string(309))]
    for chart in (dataset.draw_arch(i=309), dataset.draw_arch(s=dataset.id_to_string(309))):
        spec = chart.to_dict()
        texts = {row["text"] for rows in spec["datasets"].values() for row in rows if "text" in row}
        assert texts == {*edges, "in", "1", "2", "out"}
        assert spec["title"] == "#309"
    with pytest.raises(ArchitectureError, match="a cell string or an id is needed"):
        dataset.draw_arch()
