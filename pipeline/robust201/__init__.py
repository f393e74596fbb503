"""robust201: robustness evaluation of the whole NAS-Bench-201 architecture space."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from robust201.reader.dataset import RobustnessDataset

__all__ = ["RobustnessDataset", "__version__"]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    # The reader is imported when it is asked for: workers and the command line start without it.
    if name == "RobustnessDataset":
        from robust201.reader.dataset import RobustnessDataset

        return RobustnessDataset
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
