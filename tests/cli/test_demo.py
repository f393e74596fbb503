"""The demo exports Parquet only if an earlier export has it."""

from pathlib import Path

from robust201.cli.demo import choose_formats
from tests.support.fabricated import export, make_plan


def test_choose_formats_includes_parquet_only_if_it_exists(tmp_path: Path) -> None:
    assert choose_formats(tmp_path / "dataset") == ("json",)
    export(tmp_path / "dataset", make_plan((0, 2), datasets=("digits",)), formats=("json", "parquet"))
    assert choose_formats(tmp_path / "dataset") == ("json", "parquet")
