"""Common parts of this package's own attacks (engine `fused`), which attack images at all epsilons together.

A sample is an (image, epsilon) pair. This module forms samples, repeats attacks with restarts, and yields batches of
results. Samples are numbered strength by strength: with n images, sample s is image s % n at strength s // n.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from robust201.models.device import is_gpu
from robust201.models.model import Model
from robust201.tasks.attack_kit.batching import Batching, logits_of, slices_of_equal_values
from robust201.tasks.attack_kit.context import Context, Perturbed, Request, to_float
from robust201.tasks.attack_kit.random_numbers import CounterRandomNumbers, ImageShape, RandomNumbers

_POOL_BYTES = {"cpu": 2**26, "gpu": 2**30}
"""Maximum size in bytes of Square's pool in float32, by device type. The pool contains the samples from which Square
fills its batches."""

_POOL_BATCHES = {"cpu": 128, "gpu": 16}
"""Maximum number of batches in Square's pool, by device type. This limit applies if batches are small. At this
limit, even on CUDA, a full pool has sixteen batches, so the one that may be only partly filled costs little."""

_POOL_COPIES = 6
"""Number of float32 tensors of the size of Square's pool that are in memory at once."""

MAX_IMAGES_PER_SAMPLE = _POOL_COPIES * _POOL_BATCHES["gpu"] + 4
"""Maximum number of float32 images in GPU memory during an attack, per sample in a batch: copies of Square's pool, and
temporary tensors of a query. APGD needs less: about fourteen images per sample."""


@dataclass(frozen=True)
class AttackJob:
    """One key's attack on some images at some epsilons.

    Attributes:
        model: the network under test.
        batching: sizes of the batches that go through the model.
        random_numbers: source of random numbers.
        images: (N, 3, H, W) uint8, on the device.
        labels: (N,) int64, on the device.
        indices: (N,) positions of the images in the dataset's full split, which identify their random numbers.
        epsilons: (S,) radii of the balls in units of the pixel range [0, 1].
        on_stage: called with the number and the key of each stage of a multi-stage attack, when it begins.
    """

    model: Model
    batching: Batching
    random_numbers: RandomNumbers
    images: torch.Tensor
    labels: torch.Tensor
    indices: NDArray[np.int64]
    epsilons: tuple[float, ...]
    on_stage: Callable[[int, str], None] | None = None

    @property
    def shape(self) -> ImageShape:
        """Channels, height and width of an image."""
        channels, height, width = self.images.shape[1:]
        return channels, height, width

    def chunks(self, positions: NDArray[np.int64]) -> Iterator["Samples"]:
        """Yield all samples of some images, in groups that are attacked one after the other.

        Args:
            positions: (n,) positions of the images to attack.

        Yields:
            Samples of at most `batching.batch_size` pairs, strength by strength; a single group if
            `uses_library_batches` is set.
        """
        n_samples = len(positions) * len(self.epsilons)
        chunk_size = max(1, n_samples if self.batching.uses_library_batches else self.batching.batch_size)
        for start in range(0, n_samples, chunk_size):
            sample_numbers = np.arange(start, min(start + chunk_size, n_samples))
            yield self.samples(sample_numbers // len(positions), positions[sample_numbers % len(positions)])

    def groups_of_images(self, positions: NDArray[np.int64]) -> Iterator["Samples"]:
        """Split images into groups, and yield the samples of each group at all epsilons.

        Args:
            positions: (n,) positions of the images to attack.

        Yields:
            Samples of at most `batching.batch_size` images; of all images if `uses_library_batches` is set.
        """
        n_strengths = len(self.epsilons)
        group_size = max(1, len(positions) if self.batching.uses_library_batches else self.batching.batch_size)
        for start in range(0, len(positions), group_size):
            group = positions[start : start + group_size]
            yield self.samples(np.arange(n_strengths).repeat(len(group)), np.tile(group, n_strengths))

    def samples(self, strength_indices: NDArray[np.int64], positions: NDArray[np.int64]) -> "Samples":
        """Return the samples with these strengths and images.

        Args:
            strength_indices: (B,) index of each sample's epsilon.
            positions: (B,) position of each sample's image in `images`.
        """
        device = self.images.device
        rows = torch.from_numpy(positions).to(device)
        # Round once, from float64, as Foolbox and AutoAttack do, which pass Python numbers to torch.
        rounded = torch.tensor(self.epsilons, dtype=torch.float64).float()
        epsilons = rounded[torch.from_numpy(strength_indices)].to(device)
        return Samples(
            clean=to_float(self.images[rows]),
            labels=self.labels[rows],
            epsilons=epsilons.view(-1, 1, 1, 1),
            strength_indices=strength_indices,
            positions=positions,
            dataset_indices=self.indices[positions],
        )

    @torch.inference_mode()
    def is_correct(self) -> NDArray[np.bool_]:
        """Return whether the model classifies each clean image correctly: (N,) on the host."""
        if len(self.images) == 0:
            return np.zeros(0, np.bool_)
        predicted = [
            logits_of(self.model, self.batching, to_float(self.images[batch])).argmax(dim=1)
            for batch in self.batching.slices(np.zeros(len(self.images), np.int64))
        ]
        correct: NDArray[np.bool_] = (torch.cat(predicted) == self.labels).cpu().numpy()
        return correct


@dataclass(frozen=True)
class Samples:
    """(image, epsilon) pairs that are attacked together.

    Attributes:
        clean: (B, 3, H, W) float32 in [0, 1].
        labels: (B,) int64.
        epsilons: (B, 1, 1, 1) float32.
        strength_indices: (B,) index of each sample's epsilon, on the host.
        positions: (B,) position of each sample's image in `AttackJob.images`, on the host.
        dataset_indices: (B,) position of each sample's image in the dataset's full split, on the host.
    """

    clean: torch.Tensor
    labels: torch.Tensor
    epsilons: torch.Tensor
    strength_indices: NDArray[np.int64]
    positions: NDArray[np.int64]
    dataset_indices: NDArray[np.int64]

    def take(self, rows: NDArray[np.int64]) -> "Samples":
        if len(rows) == len(self.strength_indices):
            return self
        device_rows = torch.from_numpy(rows).to(self.clean.device)
        return Samples(
            self.clean[device_rows],
            self.labels[device_rows],
            self.epsilons[device_rows],
            self.strength_indices[rows],
            self.positions[rows],
            self.dataset_indices[rows],
        )

    def scaled_epsilons(self, factor: float, epsilon_by_strength: Sequence[float]) -> torch.Tensor:
        """Return each sample's epsilon times a factor: (B, 1, 1, 1).

        The product is computed in float64 and rounded to float32, as Foolbox and AutoAttack compute step sizes.
        """
        return self.expand_by_strength([factor * epsilon for epsilon in epsilon_by_strength])

    def expand_by_strength(self, value_by_strength: Sequence[float]) -> torch.Tensor:
        """Return, for each sample, the value that belongs to its strength, rounded to float32: (B, 1, 1, 1)."""
        rounded = torch.tensor(value_by_strength, dtype=torch.float64).float()
        return rounded[torch.from_numpy(self.strength_indices)].to(self.clean.device).view(-1, 1, 1, 1)


def make_job(context: Context, request: Request, epsilons: Sequence[float], model: Model) -> AttackJob:
    """Return the job that attacks a request's images, with counter-based random numbers and this package's batches.

    Args:
        context: the attack's context.
        request: images and strengths.
        epsilons: (S,) radius of the ball at each strength, for pixels in [0, 1].
        model: the network under test, the context's `attacked_model` or a wrapper of it.
    """
    images = request.images
    device = context.classifier.device
    batch_size = context.attacked_model.batch_sizes.attack_samples
    sample_bytes = 4 * max(1, int(np.prod(images.shape[1:])))
    device_type = "gpu" if is_gpu(device) else "cpu"
    pool_size = max(batch_size, min(_POOL_BYTES[device_type] // sample_bytes, _POOL_BATCHES[device_type] * batch_size))
    return AttackJob(
        model=model,
        batching=Batching(batch_size, pool_size),
        random_numbers=CounterRandomNumbers(context.seed, context.key),
        images=images,
        labels=request.labels,
        indices=np.asarray(request.indices, dtype=np.int64),
        epsilons=tuple(epsilons),
        on_stage=request.on_stage,
    )


def batches_by_strength(samples: Samples, images: torch.Tensor) -> Iterator[Perturbed]:
    """Yield the attacked images of samples, with one batch per strength.

    Args:
        samples: the attacked samples; equal strengths are consecutive.
        images: (B, 3, H, W) float32, the resulting images.

    Yields:
        One batch per strength.
    """
    positions = torch.from_numpy(samples.positions).to(images.device)
    for equal_strengths in slices_of_equal_values(samples.strength_indices):
        strength_index = int(samples.strength_indices[equal_strengths.start])
        # Copy the images outside of inference mode, since callers cannot differentiate through inference tensors.
        yield Perturbed(strength_index, positions[equal_strengths], images[equal_strengths].clone())


SingleRun = Callable[[AttackJob, Samples, int], tuple[torch.Tensor, torch.Tensor]]
"""(job, samples, number of the run) → candidate images (B, 3, H, W), and whether each is misclassified (B,)."""


def attack_correct(
    job: AttackJob, split: Callable[[NDArray[np.int64]], Iterator[Samples]], run: SingleRun, restarts: int
) -> Iterator[Perturbed]:
    """Attack the correctly classified images and return misclassified images unchanged, as AutoAttack does.

    Args:
        job: model, batches, random numbers and images.
        split: function (positions of images (n,)) → groups of samples that are attacked together.
        run: one run of the attack.
        restarts: number of runs.

    Yields:
        Batches of images, perturbed if the attack succeeded, otherwise clean.
    """
    correct = job.is_correct()
    for samples in job.chunks(np.flatnonzero(~correct)):
        yield from batches_by_strength(samples, samples.clean)
    for samples in split(np.flatnonzero(correct)):
        yield from batches_by_strength(samples, attack_with_restarts(job, samples, run, restarts)[0])


@torch.inference_mode()
def attack_with_restarts(
    job: AttackJob, samples: Samples, run: SingleRun, restarts: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Run an attack, run it again on the samples that resist, and classify the results once more.

    Returns:
        Images (B, 3, H, W) float32, which are clean where the attack did not succeed, and whether they are
        misclassified (B,).
    """
    adversarial = samples.clean.clone()
    remaining = np.arange(len(samples.strength_indices))
    for restart in range(restarts):
        if len(remaining) == 0:
            break
        candidates, fooled = run(job, samples.take(remaining), restart)
        rows = torch.from_numpy(remaining).to(candidates.device)
        adversarial[rows] = torch.where(fooled.view(-1, 1, 1, 1), candidates, adversarial[rows])
        if restart + 1 < restarts:
            remaining = remaining[~fooled.cpu().numpy()]
    adversarial.clamp_(0, 1)  # rounding in the projection to an L1 ball may move values slightly outside [0, 1]
    logits = logits_of(job.model, job.batching, adversarial, samples.strength_indices)
    misclassified = logits.argmax(dim=1) != samples.labels
    return torch.where(misclassified.view(-1, 1, 1, 1), adversarial, samples.clean), misclassified
