"""The allow-list unpickler reads the supported files and never executes code of a file."""

import io
import pickle
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from robust201.core.errors import CheckpointError, DatasetError
from robust201.core.unpickling import load_pickle, load_torch

CALLS: list[str] = []


def forbidden_function(argument: str) -> str:
    """Function that a malicious pickle names; tests check that it is not called."""
    CALLS.append(argument)
    return argument


class Malicious:
    def __reduce__(self) -> Any:
        return forbidden_function, ("ran",)


class TorchBytes:
    """Object that is pickled as a call of torch.storage._load_from_bytes with a torch.save file, as in NATS-Bench."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw

    def __reduce__(self) -> Any:
        return torch.storage._load_from_bytes, (self.raw,)


def unpickle(raw: bytes, **options: Any) -> Any:
    return load_pickle(io.BytesIO(raw), name="file.pickle", **options)


def torch_save_bytes(value: Any, *, zipped: bool) -> bytes:
    stream = io.BytesIO()
    torch.save(value, stream, _use_new_zipfile_serialization=zipped)
    return stream.getvalue()


@settings(max_examples=40)
@given(
    array=hnp.arrays(
        st.sampled_from(["u1", "<i4", ">i4", "<i8", "<f4", ">f8", "?"]),
        hnp.array_shapes(min_dims=0, max_dims=3, min_side=1, max_side=4),
    ),
    protocol=st.sampled_from([0, 1, 2, 3, 4]),
    is_fortran=st.booleans(),
)
def test_load_pickle_reads_numeric_arrays(array, protocol, is_fortran):
    array_in_order = np.asfortranarray(array) if is_fortran else array
    result = unpickle(pickle.dumps({"data": array_in_order}, protocol), encoding="latin1")["data"]
    assert type(result) is np.ndarray
    assert result.dtype.newbyteorder("=") == array.dtype.newbyteorder("=")
    np.testing.assert_array_equal(result, array_in_order)


def test_load_pickle_reads_python_2_image_batches():
    # Python 2 and NumPy 1 wrote these bytes for {"data": array([[1, 200]], uint8), "labels": [3]}.
    raw = (
        b"\x80\x02}q\x01(U\x04dataq\x02cnumpy.core.multiarray\n_reconstruct\nq\x03cnumpy\nndarray\nq\x04K\x00\x85"
        b"U\x01bq\x05\x87Rq\x06(K\x01K\x01K\x02\x86cnumpy\ndtype\nq\x07U\x02u1q\x08K\x00K\x01\x87Rq\t(K\x03U\x01|"
        b"q\nNNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89U\x02\x01\xc8q\x0btbU\x06labelsq\x0c]q\rK\x03au."
    )
    batch = unpickle(raw, encoding="latin1", error=DatasetError)
    assert batch["labels"] == [3]
    np.testing.assert_array_equal(batch["data"], np.array([[1, 200]], np.uint8))
    assert batch["data"].dtype == np.uint8


def test_load_pickle_reads_numpy_scalars_and_tensors():
    tensors = OrderedDict(
        weight=torch.arange(6, dtype=torch.float32).reshape(2, 3).t(), steps=torch.tensor(7), half=torch.ones(2).half()
    )
    value = {"params": np.float64(1.5), "net": tensors}
    result = unpickle(pickle.dumps(value, 4))
    assert result["params"] == 1.5
    assert list(result["net"]) == list(tensors)
    for key, tensor in tensors.items():
        assert result["net"][key].dtype == tensor.dtype
        assert torch.equal(result["net"][key], tensor)


@pytest.mark.parametrize("protocol", range(6))
def test_load_pickle_rejects_other_globals_without_calling_them(protocol):
    """This also holds inside torch.save files that are nested in a pickle, as in published records."""
    CALLS.clear()
    nested = [TorchBytes(torch_save_bytes({"a": Malicious()}, zipped=zipped)) for zipped in (True, False)]
    for value in (Malicious(), *nested):
        with pytest.raises(CheckpointError, match=r"file\.pickle: .*test_unpickling\.forbidden_function, whose code"):
            unpickle(pickle.dumps({"a": [value]}, protocol))
    assert CALLS == []


@pytest.mark.parametrize("zipped", [True, False])
def test_load_torch_reads_tensors_and_scalars_and_rejects_other_globals(zipped):
    value = {"params": np.float64(1.5), "weight": torch.arange(3.0)}
    result = load_torch(io.BytesIO(torch_save_bytes(value, zipped=zipped)), "file.pth")
    assert result["params"] == 1.5
    assert torch.equal(result["weight"], value["weight"])
    CALLS.clear()
    with pytest.raises(CheckpointError, match=r"file\.pth.*test_unpickling\.forbidden_function, whose code"):
        load_torch(io.BytesIO(torch_save_bytes({"a": Malicious()}, zipped=zipped)), "file.pth")
    assert CALLS == []


def test_load_torch_reads_files_of_numpy_1():
    raw = torch_save_bytes({"params": np.float64(1.5)}, zipped=False)
    numpy_1_raw = raw.replace(b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n")
    assert numpy_1_raw != raw or b"numpy.core" in raw
    assert load_torch(io.BytesIO(numpy_1_raw), "file.pth")["params"] == 1.5


@pytest.mark.parametrize("qualified_name", ["builtins eval", "os system", "numpy.core.multiarray scalar.__globals__"])
def test_load_pickle_rejects_dotted_and_builtin_names(qualified_name):
    module, attribute = qualified_name.split()
    raw = b"\x80\x04\x8c" + bytes([len(module)]) + module.encode() + b"\x8c" + bytes([len(attribute)])
    with pytest.raises(CheckpointError, match="whose code would be executed"):
        unpickle(raw + attribute.encode() + b"\x93.")
