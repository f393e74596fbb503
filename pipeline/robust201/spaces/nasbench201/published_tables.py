"""Readers of third-party tables about NAS-Bench-201 cells, in their original file formats.

- NAS-RobBench-201 (Wu et al., ICLR 2024), `NAS-RobBench-201_all.json`: accuracies of adversarially trained networks,
  {dataset: {id: {metric: {seed: fraction}}}}; ``threeseed`` is the mean over three seeds.
- NAS-Bench-Suite-Zero (Krishnakumar et al., NeurIPS 2022), `zc_nasbench201.json`: zero-cost proxies,
  {dataset: {operations: {proxy: {"score": number, "time": seconds} or number}}}, where operations are NASLib's indices.
- HW-NAS-Bench (Li et al., ICLR 2021), `HW-NAS-Bench-v1_0.pickle`: latency and energy on six devices,
  {"nasbench201": {dataset: {"config": [{"arch_str": …}, …], metric: [number, …]}}, …}.
"""

import ast
import reprlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from robust201.core.errors import ArchitectureError, ResultsError
from robust201.core.files import open_file
from robust201.spaces.nasbench201.cells import EDGES, N_ARCHITECTURES, format_spec, resolve

NumbersByCell = dict[str, dict[int, dict[str, float]]]
"""Numbers by dataset, cell index and column."""

MEAN_OF_SEEDS = "threeseed"

_NASLIB_OPERATIONS = ("skip_connect", "none", "nor_conv_3x3", "nor_conv_1x1", "avg_pool_3x3")
_NASLIB_EDGES = ((0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3))
"""Edges in the order of NASLib (`naslib/search_spaces/nasbench201/conversions.py`), which sorts them by source node.
Cell strings sort them by target node."""

_DATASETS = {"imagenet": "ImageNet16-120", "imagenet16-120": "ImageNet16-120"}
_MAX_BYTES = 1 << 30
_PARSE_LIMIT_ERRORS = (OverflowError, MemoryError, RecursionError)
"""Errors that parsing raises for overlong numbers and deeply nested brackets."""

Key = TypeVar("Key")
Item = TypeVar("Item")


def spec_from_naslib(codes: tuple[int, ...]) -> str:
    """Return the cell string for NASLib's six operation codes (`op_indices`).

    Raises:
        ArchitectureError: the codes are not six numbers from 0 to 4.
    """
    if len(codes) != len(_NASLIB_EDGES) or not all(code in range(len(_NASLIB_OPERATIONS)) for code in codes):
        raise ArchitectureError(
            f"Reading operation codes failed for {reprlib.repr(codes)}: they must be six numbers from 0 to 4. "
            "Check that the file is for NAS-Bench-201."
        )
    by_edge = {edge: _NASLIB_OPERATIONS[code] for edge, code in zip(_NASLIB_EDGES, codes, strict=True)}
    return format_spec([by_edge[edge] for edge in EDGES])


def read_json_table(content: Any) -> NumbersByCell | None:
    """Read the parsed JSON of NAS-RobBench-201 or NAS-Bench-Suite-Zero; return None for any other format."""
    if not isinstance(content, dict) or not content or not all(isinstance(rows, dict) for rows in content.values()):
        return None
    first_key = next((cell_key for rows in content.values() for cell_key in rows), None)
    if not isinstance(first_key, str):
        return None
    try:
        if first_key.isdecimal():
            return _unique_dict(
                (
                    _dataset_name(name),
                    _unique_dict(
                        (_parse_index(cell_key), _accuracy_columns(metrics)) for cell_key, metrics in rows.items()
                    ),
                )
                for name, rows in content.items()
            )
        if first_key.startswith("("):
            return _unique_dict(
                (
                    _dataset_name(name),
                    _unique_dict(
                        (_index_from_codes(cell_key), _proxy_scores(proxies)) for cell_key, proxies in rows.items()
                    ),
                )
                for name, rows in content.items()
            )
    except (AttributeError, TypeError, ValueError, SyntaxError, *_PARSE_LIMIT_ERRORS):
        return None
    return None


def read_pickle_table(path: Path) -> NumbersByCell:
    """Read HW-NAS-Bench's pickle, allowing only NumPy's globals.

    Raises:
        ResultsError: the pickle names a global outside NumPy, is damaged, or has a different structure.
    """
    from robust201.core.unpickling import NUMPY_GLOBALS, load_pickle

    with open_file(path, _MAX_BYTES) as stream:
        content = load_pickle(
            stream, name=str(path), allowed=NUMPY_GLOBALS, error=ResultsError, encoding="latin1", max_bytes=_MAX_BYTES
        )
    try:
        return _unique_dict(
            (_dataset_name(name), _columns_by_cell(metrics)) for name, metrics in content["nasbench201"].items()
        )
    except (AttributeError, LookupError, TypeError, ValueError, *_PARSE_LIMIT_ERRORS) as error:
        raise ResultsError(
            f"Reading a table failed for {path}: it does not have the structure of HW-NAS-Bench-v1_0.pickle, a "
            "dictionary with the key nasbench201, and config and metrics for each dataset "
            f"({type(error).__name__}: {error}). Convert the table to CSV with a column of indices or cell strings."
        ) from error


def _unique_dict(pairs: "Iterable[tuple[Key, Item]]") -> "dict[Key, Item]":
    """Build a dict; raise ValueError if a key occurs twice."""
    unique: dict[Key, Item] = {}
    for key, item in pairs:
        if key in unique:
            raise ValueError(f"{key!r} occurs twice")
        unique[key] = item
    return unique


def _dataset_name(name: str) -> str:
    return _DATASETS.get(name.lower(), name)


def _index_from_codes(text: str) -> int:
    return resolve(spec_from_naslib(ast.literal_eval(text))).index


def _parse_index(text: str) -> int:
    index = int(text)
    if not 0 <= index < N_ARCHITECTURES:
        raise ValueError(f"there is no cell with index {index}")
    return index


def _accuracy_columns(metrics: Mapping[str, Any]) -> dict[str, float]:
    columns: dict[str, float] = {}
    for metric, value in metrics.items():
        if not isinstance(value, dict):
            columns[metric] = float(value)
            continue
        accuracies = {seed: float(accuracy) for seed, accuracy in value.items() if seed != MEAN_OF_SEEDS}
        if value:
            columns[metric] = float(value.get(MEAN_OF_SEEDS, sum(accuracies.values()) / max(len(accuracies), 1)))
        if len(accuracies) > 1:
            columns |= {f"{metric} (seed {seed})": accuracy for seed, accuracy in accuracies.items()}
    return columns


def _proxy_scores(proxies: Mapping[str, Any]) -> dict[str, float]:
    return {
        name: float(value["score"] if isinstance(value, dict) else value)
        for name, value in proxies.items()
        if name != "id"
    }


def _columns_by_cell(metrics: Mapping[str, Any]) -> dict[int, dict[str, float]]:
    configs = metrics["config"]
    indexed_configs = configs.items() if isinstance(configs, dict) else enumerate(configs)
    columns = {name: values for name, values in metrics.items() if name != "config"}
    return _unique_dict(
        (resolve(str(config["arch_str"])).index, {name: float(values[index]) for name, values in columns.items()})
        for index, config in indexed_configs
    )
