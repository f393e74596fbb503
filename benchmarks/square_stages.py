"""What a query of Square costs over a whole run, where the fused engine computes only what a window changes.

The window shrinks in stages, and with it what a window-local search has to compute (docs/engine.md), so the first few
queries, which `engine.py` measures, say nothing about the later ones. Each stage is measured by itself: what starting a
search costs, shared out among the queries it is made for, and what a query and its acceptance cost. Windows lie where
the attack may put them; one image in 32 accepts, about as many as in a run on a trained network.
"""

import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from robust201.engine.batching import Batching
from robust201.spaces.nasbench201.compiled import InferenceNetwork
from robust201.tasks.parameters import SquareParameters
from robust201.tasks.perturbations.square import SHARE_HALVINGS, side_of

ACTIVE_SHARE_FILE = Path(__file__).with_name("square_active_share.json")
TIMED_QUERIES = 8
ACCEPTING = 32

Clock = Callable[[Callable[[], object]], float]


@dataclass(frozen=True)
class Stage:
    """Queries with one side of the window.

    Attributes:
        first: number of the first query.
        stop: one past the last one.
        side: rows and columns of the window.
        share: mean share of (image, epsilon) pairs that these queries are made for.
    """

    first: int
    stop: int
    side: int
    share: float

    @property
    def weight(self) -> float:
        """Queries that are made, an image and epsilon."""
        return (self.stop - self.first) * self.share

    @property
    def queries_together(self) -> int:
        """Queries that one search is made for, in the middle of the stage."""
        return Batching(1, 1).queries_together((self.first + self.stop) // 2)


def stages_of(n_queries: int, image_size: int, share: float | None = None) -> list[Stage]:
    """List the stages of a run.

    Args:
        n_queries: queries of the run.
        image_size: height and width of the images.
        share: share of the queries that are made; None for the measured curve (`active_share.py`).
    """
    edges = [0, *(after + 1 for after in SHARE_HALVINGS if after + 1 < n_queries), n_queries]
    p_init = SquareParameters().p_init
    shape = (3, image_size, image_size)
    return [
        Stage(first, stop, side_of(first, p_init, shape), _mean_share(first, stop) if share is None else share)
        for first, stop in itertools.pairwise(edges)
    ]


def _mean_share(first: int, stop: int) -> float:
    measured = json.loads(ACTIVE_SHARE_FILE.read_text())
    curve = np.mean(list(measured["active_share_by_epsilon_255"].values()), axis=0)
    return float(np.interp(np.arange(first, stop), measured["shown_queries"], curve).mean())


def search_seconds(network: InferenceNetwork, pixels: torch.Tensor, stage: Stage, clock: Clock) -> float | None:
    """Measure a query of one stage.

    Args:
        network: the compiled network.
        pixels: (B, 3, H, W) float32 in [0, 1], as many as the engine shows at once.
        stage: the stage.
        clock: gives the seconds that a call takes.

    Returns:
        Seconds an image; None where the network looks at whole images in this stage.
    """
    sides = [stage.side] * stage.queries_together
    search = network.window_search(pixels, sides)
    if search is None:
        return None
    start = clock(lambda: network.window_search(pixels, sides))
    generator = torch.Generator().manual_seed(stage.side)
    size = pixels.shape[2]

    def query() -> None:
        row, column = torch.randint(size - stage.side, (2,), generator=generator).tolist()
        window = pixels[:, :, row : row + stage.side, column : column + stage.side]
        search.logits(row, column, window)
        search.accept(torch.randint(ACCEPTING, (len(pixels),), generator=generator) == 0)

    def make_queries() -> None:
        for _ in range(TIMED_QUERIES):
            query()

    query()
    return (start / stage.queries_together + clock(make_queries) / TIMED_QUERIES) / len(pixels)


def mean_query_seconds(stages: list[Stage], whole: float, forward: float, local: dict[int, float]) -> float:
    """Weigh the stages.

    Args:
        stages: of the run.
        whole: seconds an image and query where whole images are shown, Square's own work included.
        forward: seconds an image of a forward pass.
        local: stage's side to seconds an image and query of the search alone, for the stages that are local.

    Returns:
        Seconds an image and query that is made, on average over the run.
    """
    costs = [whole - forward + local[stage.side] if stage.side in local else whole for stage in stages]
    weights = [stage.weight for stage in stages]
    return float(np.average(costs, weights=weights))
