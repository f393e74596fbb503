"""What a sweep reads: images, corrupted images and weights, opened the same way by the driver and by every worker."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pipeline.checkpoints.store import CheckpointStore
from pipeline.config import CorruptionsSection, SweepConfig
from pipeline.corrupting import generate_corruptions
from pipeline.datasets import load_images, select
from pipeline.datasets.corrupted import CorruptedStore, open_generated, open_published
from pipeline.errors import DatasetError
from pipeline.perturbations import PERTURBATIONS
from pipeline.perturbations.corruptions import FrostTextures, load_frost, synthetic_frost
from pipeline.plan import DatasetFacts, Facts
from pipeline.records import ImageSet

Say = Callable[[str], None]


@dataclass(frozen=True)
class Inputs:
    """The opened inputs of a sweep.

    Attributes:
        config: the sweep.
    """

    config: SweepConfig

    def images(self, dataset: str) -> ImageSet:
        """Load a dataset's selected test images.

        Raises:
            DatasetError: images are missing, damaged or fewer than asked for.
        """
        section = self.config.datasets[dataset]
        images = load_images(dataset, form=section.form, path=section.path)
        count = self.config.images.count
        return images if count is None else select(images, count=count, seed=self.config.images.seed)
