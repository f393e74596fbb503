"""The allow-list unpickler: what it reads, and that nothing a file names ever runs."""

import bz2
import contextlib
import io
import pickle
import tracemalloc
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from robust201.core.errors import CheckpointError, DatasetError
from robust201.core.unpickling import NATS_GLOBALS, NUMPY_GLOBALS, load_pickle, load_torch

RAN: list[str] = []


def run_something(mark: str) -> str:
    """What a hostile pickle would call; the tests look whether it did."""
    RAN.append(mark)
    return mark


class Hostile:
    def __reduce__(self) -> Any:
        return run_something, ("ran",)


class TorchBytes:
    """Pickles as the published records do: a call of torch.storage._load_from_bytes with a torch.save file in it."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw

    def __reduce__(self) -> Any:
        return torch.storage._load_from_bytes, (self.raw,)


def read(raw: bytes, **options: Any) -> Any:
    return load_pickle(io.BytesIO(raw), name="file.pickle", **options)


def saved(value: Any, *, zipped: bool) -> bytes:
    stream = io.BytesIO()
    torch.save(value, stream, _use_new_zipfile_serialization=zipped)
    return stream.getvalue()


@settings(max_examples=40)
@given(
    value=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.sets(st.integers()) | st.tuples(inner),
        max_leaves=10,
    ),
    protocol=st.sampled_from([2, 3, 4, 5]),
)
def test_plain_containers_come_back_equal(value: Any, protocol: int) -> None:
    # Protocols 2 and 3 name builtins.set and _codecs.encode for sets and bytes, which NATS's protocol 4 does not.
    allowed = {**NATS_GLOBALS, **NUMPY_GLOBALS, ("builtins", "set"): set, ("__builtin__", "set"): set}
    allowed["__builtin__", "bytes"] = bytes
    assert read(pickle.dumps(value, protocol), allowed=allowed) == value


@settings(max_examples=40)
@given(
    array=hnp.arrays(
        st.sampled_from(["u1", "<i4", ">i4", "<i8", "<f4", ">f8", "?"]),
        hnp.array_shapes(min_dims=0, max_dims=3, min_side=1, max_side=4),
    ),
    protocol=st.sampled_from([0, 1, 2, 3, 4, 5]),
    fortran=st.booleans(),
)
def test_numeric_arrays_come_back_equal_and_plain(array: np.ndarray, protocol: int, fortran: bool) -> None:
    written = np.asfortranarray(array) if fortran else array
    got = read(pickle.dumps({"data": written}, protocol), allowed=NUMPY_GLOBALS, encoding="latin1")["data"]
    assert type(got) is np.ndarray
    assert got.dtype.newbyteorder("=") == array.dtype.newbyteorder("=")
    np.testing.assert_array_equal(got, written)


def test_python_2_pickle_of_an_image_batch_is_read() -> None:
    # What Python 2 and numpy 1 wrote for {"data": array([[1, 200]], uint8), "labels": [3]}.
    raw = (
        b"\x80\x02}q\x01(U\x04dataq\x02cnumpy.core.multiarray\n_reconstruct\nq\x03cnumpy\nndarray\nq\x04K\x00\x85"
        b"U\x01bq\x05\x87Rq\x06(K\x01K\x01K\x02\x86cnumpy\ndtype\nq\x07U\x02u1q\x08K\x00K\x01\x87Rq\t(K\x03U\x01|"
        b"q\nNNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89U\x02\x01\xc8q\x0btbU\x06labelsq\x0c]q\rK\x03au."
    )
    batch = read(raw, allowed=NUMPY_GLOBALS, encoding="latin1", error=DatasetError)
    assert batch["labels"] == [3]
    np.testing.assert_array_equal(batch["data"], np.array([[1, 200]], np.uint8))
    assert batch["data"].dtype == np.uint8


def test_numpy_scalars_and_tensors_come_back_equal() -> None:
    tensors = OrderedDict(
        weight=torch.arange(6, dtype=torch.float32).reshape(2, 3).t(), steps=torch.tensor(7), half=torch.ones(2).half()
    )
    value = {"params": np.float64(1.5), "net": tensors}
    got = read(pickle.dumps(value, 4))
    assert got["params"] == 1.5
    assert list(got["net"]) == list(tensors)
    for key, tensor in tensors.items():
        assert got["net"][key].dtype == tensor.dtype
        assert torch.equal(got["net"][key], tensor)


@pytest.mark.parametrize("protocol", range(6))
def test_foreign_global_is_refused_and_never_runs(protocol: int) -> None:
    RAN.clear()
    with pytest.raises(CheckpointError, match=r"file\.pickle.*got .*test_unpickling\.run_something\."):
        read(pickle.dumps({"a": [Hostile()]}, protocol))
    assert RAN == []


@pytest.mark.parametrize("zipped", [True, False])
def test_foreign_global_inside_torch_bytes_is_refused_and_never_runs(zipped: bool) -> None:
    RAN.clear()
    with pytest.raises(CheckpointError, match=r"file\.pickle.*got .*test_unpickling\.run_something\."):
        read(pickle.dumps({"net": TorchBytes(saved({"a": Hostile()}, zipped=zipped))}, 4))
    assert RAN == []


@pytest.mark.parametrize("zipped", [True, False])
def test_torch_files_hold_tensors_and_numpy_scalars_and_run_nothing(zipped: bool) -> None:
    value = {"params": np.float64(1.5), "weight": torch.arange(3.0)}
    got = load_torch(io.BytesIO(saved(value, zipped=zipped)), "file.pth")
    assert got["params"] == 1.5
    assert torch.equal(got["weight"], value["weight"])
    RAN.clear()
    with pytest.raises(CheckpointError, match=r"file\.pth.*names .*test_unpickling\.run_something, whose code"):
        load_torch(io.BytesIO(saved({"a": Hostile()}, zipped=zipped)), "file.pth")
    assert RAN == []


def test_torch_files_of_an_older_numpy_are_read() -> None:
    raw = saved({"params": np.float64(1.5)}, zipped=False)
    old = raw.replace(b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n")
    assert old != raw or b"numpy.core" in raw
    assert load_torch(io.BytesIO(old), "file.pth")["params"] == 1.5


@pytest.mark.parametrize("name", ["builtins eval", "os system", "numpy.core.multiarray scalar.__globals__"])
def test_dotted_and_builtin_names_do_not_get_round_the_list(name: str) -> None:
    module, attribute = name.split()
    raw = b"\x80\x04\x8c" + bytes([len(module)]) + module.encode() + b"\x8c" + bytes([len(attribute)])
    with pytest.raises(CheckpointError, match="expected no globals but"):
        read(raw + attribute.encode() + b"\x93.")


def test_build_opcode_cannot_change_a_constructor() -> None:
    # Fetch numpy's scalar constructor and set an attribute of it; a plain function would take it.
    raw = b"\x80\x02cnumpy.core.multiarray\nscalar\nN}(X\x05\x00\x00\x00stateK\x01u\x86b."
    with pytest.raises(CheckpointError, match="damaged"):
        read(raw)
    assert read(pickle.dumps(np.float64(2.0), 4)) == 2.0


@pytest.mark.parametrize(
    "value",
    [
        np.array([{"object": 1}], dtype=object),
        np.zeros(2, dtype=[("a", "f4"), ("b", "i4")]),
        np.array(["text"]),
    ],
    ids=["object", "structured", "text"],
)
def test_arrays_of_anything_but_numbers_are_refused(value: np.ndarray) -> None:
    with pytest.raises(CheckpointError, match="are not read"):
        read(pickle.dumps(value, 2), allowed=NUMPY_GLOBALS, encoding="latin1")


def test_tensor_larger_than_its_storage_is_refused() -> None:
    class Oversized:
        def __reduce__(self) -> Any:
            return torch._utils._rebuild_tensor_v2, (torch.ones(4).storage(), 2, (10**6, 10**6), (0, 0), False, None)

    with pytest.warns(UserWarning, match="TypedStorage"):
        raw = pickle.dumps(Oversized(), 4)
    with pytest.raises(CheckpointError, match=r"shape \(1000000, 1000000\) in a storage of 4 values"):
        read(raw)


def test_array_of_absurd_initial_shape_is_refused() -> None:
    raw = b"\x80\x02cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n\x8a\x06\x00\x00\x00\x00\x00\x10\x85X\x01"
    raw += b"\x00\x00\x00b\x87R."
    with pytest.raises(CheckpointError, match="initial shape"):
        read(raw, allowed=NUMPY_GLOBALS)


def test_decompression_stops_at_the_limit() -> None:
    bomb = bz2.compress(pickle.dumps(bytes(1 << 22), 4))
    assert len(bomb) < 1000
    with pytest.raises(CheckpointError, match=r"at most 1,048,576 bytes after decompression"):
        load_pickle(bz2.BZ2File(io.BytesIO(bomb)), name="bomb", max_bytes=1 << 20)
    assert load_pickle(bz2.BZ2File(io.BytesIO(bomb)), name="fits", max_bytes=1 << 23) == bytes(1 << 22)


@settings(max_examples=60)
@given(data=st.data())
def test_every_truncation_is_one_clear_error(data: st.DataObject) -> None:
    raw = pickle.dumps({"params": np.float64(1.5), "net": OrderedDict(w=torch.ones(20))}, 4)
    cut = data.draw(st.integers(0, len(raw) - 1))
    with pytest.raises(
        CheckpointError, match=r"^Unpickling failed for file\.pickle: expected a whole pickle, got .*\.$"
    ):
        read(raw[:cut])
    packed = bz2.compress(raw)
    with pytest.raises(CheckpointError, match="truncated or damaged"):
        load_pickle(bz2.BZ2File(io.BytesIO(packed[: cut % len(packed)])), name="file")


@settings(max_examples=150)
@given(data=st.data())
def test_flipped_bytes_never_raise_anything_else(data: st.DataObject) -> None:
    raw = bytearray(pickle.dumps({"params": np.float64(1.5), "labels": [1, 2], "data": np.arange(3)}, 2))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(CheckpointError):
        read(bytes(raw), allowed=NUMPY_GLOBALS, encoding="latin1")


def test_absurd_memo_index_takes_no_memory() -> None:
    # LONG_BINPUT stores None at place 2**24; an unpickler with its memo in an array takes 256 MB for that.
    tracemalloc.start()
    try:
        assert read(b"\x80\x02Nr\x00\x00\x00\x01.") is None
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.shared
def test_official_files_are_read(shared_data: Path) -> None:
    folder = shared_data / "nats-official"
    if not folder.is_dir():
        pytest.skip(f"no nats-official in {shared_data}")
    for index in (0, 11, 284):
        with bz2.open(folder / f"{index:06d}.pickle.pbz2") as stream:
            record = load_pickle(stream, name=str(index))
        assert record["200"]["arch_index"] == index
        assert record["200"]["all_results"]["cifar10", 777]["net_state_dict"] is None
    with bz2.open(folder / "meta.pickle.pbz2") as stream:
        assert len(load_pickle(stream, name="meta")["meta_archs"]) == 15_625
