"""`load_any_sweep` reads a sweep from a YAML or from a results folder."""

from pathlib import Path

import pytest

from robust201.core.errors import InputError
from robust201.planning.plan_file import load_any_sweep
from robust201.runtime.sweep import prepare_sweep
from robust201.sweep.loading import parse_config
from tests.conftest import THREE_KEYS, MakeFields, WriteSweep


def test_load_any_sweep_reads_same_sweep_from_yaml_and_results(
    write_sweep: WriteSweep, sweep_fields: MakeFields
) -> None:
    path = write_sweep()
    config = load_any_sweep(path)
    assert config == parse_config(sweep_fields(keys=THREE_KEYS), "")
    prepare_sweep(config)
    assert load_any_sweep(config.results) == config
    assert load_any_sweep(config.results, execution={"workers": 3}).execution.workers == 3


def test_load_any_sweep_rejects_folder_without_plan(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="expected a results folder"):
        load_any_sweep(tmp_path)
