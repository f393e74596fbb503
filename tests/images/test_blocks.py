"""The store of computed images: missing blocks, order, and damaged files."""

from pathlib import Path

import numpy as np
import pytest

from robust201.core.errors import DatasetError
from robust201.images.blocks import BlockStore

PIXELS = np.random.default_rng(0).random((20, 3, 2, 2), dtype=np.float32)


def test_missing_blocks_are_listed_and_all_are_read_in_order(tmp_path: Path) -> None:
    store = BlockStore(tmp_path / "store", 20, 8)
    assert store.find_missing() == [(0, 8), (8, 16), (16, 20)]
    store.write(16, PIXELS[16:])
    store.write(0, PIXELS[:8])
    assert store.find_missing() == [(8, 16)]
    with pytest.raises(DatasetError, match="000008-000016"):
        list(store.read())
    store.write(8, PIXELS[8:16])
    assert np.array_equal(np.concatenate(list(store.read())), PIXELS)


@pytest.mark.parametrize("damage", ["shape", "folder", "link"])
def test_damaged_block_is_named(tmp_path: Path, damage: str) -> None:
    store = BlockStore(tmp_path, 20, 20)
    store.write(0, PIXELS)
    (block,) = tmp_path.glob("*.npy")
    block.unlink()
    if damage == "shape":  # the file is a valid block, but for fewer images
        store.write(0, PIXELS[:5])
        (block,) = tmp_path.glob("*.npy")
        block.rename(tmp_path / block.name.replace("000005", "000020"))
    elif damage == "folder":
        block.mkdir()
    else:
        block.symlink_to(tmp_path / "nothing")
    with pytest.raises(DatasetError, match=r"000000-000020-"):
        list(store.read())
