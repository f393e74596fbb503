"""robust201 evaluates the robustness of networks, and of the whole NAS-Bench-201 architecture space.

`load_model`, `evaluate`, `compare`, `attack` and `place` are documented in `robust201.api`, `curves` in
`robust201.security`, and `show` in `robust201.gallery`. `RobustnessDataset` reads results.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from robust201.api import attack, compare, evaluate, load_model, place
    from robust201.dataset.reader import RobustnessDataset
    from robust201.gallery import show
    from robust201.security import curves

__all__ = ["RobustnessDataset", "__version__", "attack", "compare", "curves", "evaluate", "load_model", "place", "show"]

__version__ = "0.2.0"


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    # These names are imported on first use, so that workers and the command line start quickly.
    if name == "RobustnessDataset":
        from robust201.dataset.reader import RobustnessDataset

        return RobustnessDataset
    if name == "show":
        from robust201.gallery import show

        return show
    if name == "curves":
        from robust201.security import curves

        return curves
    if name in __all__:
        from robust201 import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
