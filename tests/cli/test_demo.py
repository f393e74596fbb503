"""The file formats that the demo exports."""

from pathlib import Path

from robust201.cli.demo import choose_formats
from tests.support.fabricated import export, make_plan


def test_demo_keeps_parquet_of_earlier_export(tmp_path: Path) -> None:
    assert choose_formats(tmp_path / "dataset") == ("json",)
    export(tmp_path / "dataset", make_plan((0, 2), datasets=("digits",)), formats=("json", "parquet"))
    assert choose_formats(tmp_path / "dataset") == ("json", "parquet")
