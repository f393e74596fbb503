"""Estimated accuracies of a dataset.

A sweep with a compute budget evaluates most networks on a sample of the images only. Its export contains estimates of
their accuracies on all images.
"""

from typing import TYPE_CHECKING

from robust201.core.errors import ResultsError
from robust201.reader.overlay import OverlaidFiles
from robust201.reader.result_files import ESTIMATES_FILE, ResultFiles

if TYPE_CHECKING:
    import pandas as pd

_IDENTITY_COLUMNS = ["dataset", "key", "architecture", "strength"]
"""Columns that identify an accuracy."""


def has_estimates(files: ResultFiles) -> bool:
    """Return whether a folder, or any of several folders, contains estimates."""
    layers = files.layers if isinstance(files, OverlaidFiles) else (files,)
    return any((layer.path / ESTIMATES_FILE).is_file() for layer in layers)


def read_estimates(files: ResultFiles) -> "pd.DataFrame":
    """Read all estimates.

    Returns:
        One row per network, key and strength, with the columns `dataset`, `key`, `architecture` (and further columns
        that describe it), `strength`, `value`, `standard_error`, `low` and `high` (the 95% interval), `n_seen`
        (number of evaluated images), `n_images` and `design` (sampling design). Keys are spelled as in the published
        dataset. There are no rows if there are no estimates.

    Raises:
        ResultsError: a file is damaged, or two folders have different estimates of the same accuracy.
    """
    import pandas as pd

    from robust201.reader.parquet_results import read_whole

    layers = files.layers if isinstance(files, OverlaidFiles) else (files,)
    frames = []
    for layer in layers:
        path = layer.path / ESTIMATES_FILE
        if path.is_file():
            frames.append(read_whole(path).to_pandas())
    if not frames:
        return pd.DataFrame(columns=["dataset", "key", "architecture"])
    table: pd.DataFrame = pd.concat(frames, ignore_index=True)
    table = table.drop_duplicates([*_IDENTITY_COLUMNS, "value", "standard_error"], ignore_index=True)
    repeated_rows = table.loc[table.duplicated(_IDENTITY_COLUMNS), _IDENTITY_COLUMNS]
    if len(repeated_rows):
        dataset, key, architecture, _ = repeated_rows.iloc[0]
        raise ResultsError(
            f"Reading estimates failed for {files.path}: expected one estimate of {architecture} under {key} on "
            f"{dataset}, got several from different folders. Omit one of the folders."
        )
    return table


def estimates_note(files: ResultFiles, activity: str) -> str:
    """Return a note that a command ignores the folder's estimates, or an empty string if there are none.

    `activity` is the subject and verb of the note, such as ``figures show``.
    """
    if not has_estimates(files):
        return ""
    frame = read_estimates(files)
    keys = ", ".join(dict.fromkeys(frame["key"].astype(str)))
    n_networks = len(frame.drop_duplicates(["dataset", "architecture"]))
    return (
        f"note: {activity} only accuracies on all images. {files.path} also has estimates of {n_networks:,} networks "
        f"under {keys}, which `rank` shows."
    )
