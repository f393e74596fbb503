"""Which of a dataset's files an answer comes from, where a folder holds JSON and Parquet."""

from collections.abc import Iterable, Sequence

from robust201.reader.result_files import ResultFiles


def describe_source(files: ResultFiles, datasets: Iterable[str], keys: Sequence[str], measure: str = "accuracy") -> str:
    """Say from which files a measurement is read: Parquet or JSON, key by key (see `ResultFiles.find`).

    Returns:
        ``"JSON"``, ``"Parquet"`` or, where some keys have no Parquet, or Parquet that was made of another JSON
        file, ``"Parquet, but JSON of digits fog"``; empty where there is no file.
    """
    found: dict[bool, list[str]] = {}
    for dataset in datasets:
        for key in keys:
            file = files.find(dataset, key, measure)
            if file is not None:
                found.setdefault(file.suffix == ".parquet", []).append(f"{dataset} {key}")
    if len(found) < 2:
        return "".join("Parquet" if of_parquet else "JSON" for of_parquet in found)
    return f"Parquet, but JSON of {', '.join(found[False])}"
