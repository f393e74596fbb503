"""Which of a dataset's files an answer comes from, where a folder holds JSON and Parquet."""

from collections.abc import Iterable, Sequence

from robust201.reader.result_files import ResultFiles


def describe_source(files: ResultFiles, datasets: Iterable[str], keys: Sequence[str], measure: str = "accuracy") -> str:
    """Say from which files a measurement is read: JSON where there is any, else Parquet, key by key.

    Args:
        files: of the dataset.
        datasets: their names.
        keys: in either spelling.
        measure: name of the measurement.

    Returns:
        ``"JSON"``, ``"Parquet"`` or, of a folder that was changed after its export, ``"JSON, but Parquet of digits fog,
        which has no JSON"``; empty where there is no file.
    """
    found: dict[bool, list[str]] = {}
    for dataset in datasets:
        for key in keys:
            file = files.find(dataset, key, measure)
            if file is not None:
                found.setdefault(file.suffix == ".parquet", []).append(f"{dataset} {key}")
    if len(found) < 2:
        return "".join("Parquet" if of_parquet else "JSON" for of_parquet in found)
    names = found[True]
    return f"JSON, but Parquet of {', '.join(names)}, which {'has' if len(names) == 1 else 'have'} no JSON"
