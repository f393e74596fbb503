"""robust201 evaluates the robustness of networks, and of the whole NAS-Bench-201 architecture space.

`evaluate` and `attack` are documented in `robust201.api`, `compare` and `curves` in `robust201.comparing`, and `show`
in `robust201.gallery`. `Evaluation` is the result of `evaluate`, and `Dataset` reads results of sweeps.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from robust201.analysis.evaluation import Evaluation
    from robust201.api import attack, evaluate
    from robust201.comparing import compare, curves
    from robust201.dataset.reader import Dataset
    from robust201.gallery import show
    from robust201.images import load_images
    from robust201.loading import load_model

_MODULES = {
    "Dataset": "dataset.reader",
    "Evaluation": "analysis.evaluation",
    "attack": "api",
    "compare": "comparing",
    "curves": "comparing",
    "evaluate": "api",
    "load_images": "images",
    "load_model": "loading",
    "show": "gallery",
}
"""Module of each public name."""

__all__ = [
    "Dataset",
    "Evaluation",
    "__version__",
    "attack",
    "compare",
    "curves",
    "evaluate",
    "load_images",
    "load_model",
    "show",
]

__version__ = "0.2.0"


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    # These names are imported on first use, so that workers and the command line start quickly.
    if name in _MODULES:
        return getattr(import_module(f"robust201.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
