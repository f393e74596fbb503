"""Train one network with a recipe, deterministically; a run can stop after any step and resume (docs/training.md).

On a CPU, equal arguments give byte-identical weights on equal machines with equal versions of PyTorch, even after
interruptions. The number of threads is one of the arguments, because it affects the order of float additions.
"""

import random
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from robust201.core.errors import CheckpointError, ConfigError, EvaluationError, NetworkError, one_line
from robust201.core.memory import restore_gc_thresholds
from robust201.core.noise import derived_seed
from robust201.core.precision import Precision
from robust201.core.records import ArchitectureId, ImageSet, format_architecture
from robust201.networks.classifier import Classifier, network_logits
from robust201.networks.device import available_device, check_device, has_avx512, restored_random_state, worker_settings
from robust201.networks.network_check import CheckedImages, check_network
from robust201.networks.space import Space
from robust201.training.adversarial import RandomStarts, step_loss
from robust201.training.augmentation import Augmenter, to_device
from robust201.training.data import Batch, TrainingData
from robust201.training.identity import hash_training
from robust201.training.recipes import Recipe
from robust201.training.state import EpochRecord, StateFolder, TrainingState
from robust201.weights.store import hash_weights

_EVALUATION_BATCH_SIZE = 256

_N_CHECKED_IMAGES = 8
"""Number of images on which the untrained network's logits are checked."""


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The weights after `step` steps; a drop of the learning rate at this step affects only later steps.

    Attributes:
        step: number of steps so far; 0 for the initial weights.
        n_batches: steps per epoch.
        state_dict: CPU tensors by name.
        history: one record per epoch. Within an epoch, the last record covers the completed part of this epoch.
    """

    step: int
    n_batches: int
    state_dict: Mapping[str, torch.Tensor]
    history: tuple[EpochRecord, ...]

    @property
    def epochs(self) -> int | None:
        """Number of completed epochs; None within an epoch."""
        return None if self.step % self.n_batches else self.step // self.n_batches


def train(
    space: Space,
    architecture: ArchitectureId,
    data: TrainingData,
    recipe: Recipe,
    *,
    seed: int,
    device: str = "cpu",
    threads: int = 1,
    precision: Literal["fp32", "tf32"] = "fp32",
    start: Mapping[str, torch.Tensor] | None = None,
    states: Path | None = None,
    snapshot_steps: Collection[int] | None = None,
    on_epoch: Callable[[EpochRecord], None] = lambda _record: None,
    keep_going: Callable[[int], bool] = lambda _step: True,
) -> Iterator[Snapshot]:
    """Train one network and yield its snapshots in order as they are reached.

    While the caller handles a snapshot, the process has its previous settings and random state. The arguments `data`
    (training data) and `start` (initial weights) replace `recipe.data` and `recipe.start`, which are ignored.
    `precision` is fp32 or, on a GPU, tf32.

    `states` is a folder for saved states of this training run only. With None, no states are saved. A state is saved at
    the end of each epoch, before a snapshot is yielded, and when `keep_going` ends the iteration. Therefore, a snapshot
    that the caller did not store before a crash is yielded again. Only the recipe's snapshots at `snapshot_steps` are
    yielded (None: all of them), and training ends after the last of them.

    `on_epoch` receives the record of each completed epoch. `keep_going` is called before each step with the number of
    steps so far. If it returns False, the iteration ends.

    Raises:
        ArchitectureError: there is no such architecture, or PyTorch cannot train it on this CPU.
        CheckpointError: `start` does not fit the network.
        ConfigError: this machine lacks the device or precision, or `Recipe.snapshot_steps` rejects the recipe.
        DatasetError: the robust dataset has too few images for the mixture (see `training.data`).
        EvaluationError: the loss or weights are not finite, or the network rejects a batch of one image.
        NetworkError: the untrained network's logits are invalid, nothing is trainable, or
            building the network twice returns the same module.
        StorageError: a state cannot be read or written, or belongs to another training run.
    """
    _check_device(device, precision)
    if device == "cpu" and not has_avx512():
        space.check_training_without_avx512(architecture)
    n_batches = data.n_batches(recipe.batch_size)
    target_steps = [
        step for step in recipe.snapshot_steps(n_batches) if snapshot_steps is None or step in snapshot_steps
    ]
    if not target_steps:
        return
    state_folder = None
    if states is not None:
        training_id = hash_training(
            space=space.name,
            space_identity=space.identity(),
            architecture=architecture,
            n_classes=data.n_classes,
            data=data.identity(),
            recipe=recipe.identity(),
            seed=seed,
            device=device,
            threads=threads,
            precision=precision,
            start=None if start is None else hash_weights(start),
        )
        state_folder = StateFolder(states, training_id)
    run_label = f"{format_architecture(architecture)} on {data.name}"
    with _deterministic(device, threads, precision):
        run = _TrainingRun(space, architecture, data, recipe, seed, torch.device(device), start, run_label)
        state = None if state_folder is None else state_folder.load(max_step=target_steps[0])
        if state is not None:
            run.restore(state)
    for target_step in target_steps:
        with _deterministic(device, threads, precision):
            is_reached = run.run_until(target_step, state_folder, on_epoch, keep_going)
            snapshot = run.make_snapshot() if is_reached else None
        if snapshot is None:
            return
        yield snapshot


class _TrainingRun:
    """A training run: the network, its optimiser, and the position in the training data."""

    def __init__(
        self,
        space: Space,
        architecture: ArchitectureId,
        data: TrainingData,
        recipe: Recipe,
        seed: int,
        device: torch.device,
        start: Mapping[str, torch.Tensor] | None,
        label: str,
    ) -> None:
        self._data, self._recipe, self._seed, self._device, self._label = data, recipe, seed, device, label
        self._n_batches = data.n_batches(recipe.batch_size)
        self._network = _initialise(space, architecture, data.n_classes, seed, start, label).to(device)
        self._layout = torch.contiguous_format
        if space.channels_last:
            self._layout = torch.channels_last
            self._network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._optimiser = _make_optimiser(self._network, recipe)
        self._augment = Augmenter(recipe.augmentation, n_ids=data.n_ids, seed=seed, device=device)
        self._mean, self._std = (
            torch.tensor(values, device=device).view(1, -1, 1, 1)
            for values in (data.normalisation.mean, data.normalisation.std)
        )
        self._check_network(_build(space, architecture, data.n_classes, seed))
        self.step = self._saved_step = 0
        self._history: tuple[EpochRecord, ...] = ()
        self._batches: Iterator[Batch] = iter(())
        self._begin_epoch()

    def _check_network(self, second_network: nn.Module) -> None:
        """Check the logits of a second copy of the network on a few images; `Classifier` would freeze the first."""
        if second_network is self._network:
            raise NetworkError(
                f"Building the network failed for {self._label}: two calls of the function returned the same module, "
                "so training would not start from new weights. Build a new network in each call."
            )
        if not any(parameter.requires_grad for parameter in self._network.parameters()):
            raise NetworkError(
                f"Checking the network failed for {self._label}: it has no parameters that can be trained. Return a "
                "network with parameters."
            )
        batch = next(iter(self._data.batches(self._recipe.batch_size, self._seed, 0)))
        pixels = to_device(batch.pixels[:_N_CHECKED_IMAGES], self._device).float() / 255
        classifier = Classifier(
            second_network.to(self._device),
            self._data.normalisation,
            n_classes=self._data.n_classes,
            device=self._device,
            channels_last=self._layout == torch.channels_last,
        )
        check_network(
            classifier, CheckedImages(pixels), name=self._label, n_classes=self._data.n_classes, randomised=True
        )

    def _begin_epoch(self) -> None:
        # The sums stay on the device, because reading them after each step would synchronise with it.
        self._loss_sum = torch.zeros((), dtype=torch.float64, device=self._device)
        self._n_correct = torch.zeros((), dtype=torch.int64, device=self._device)
        self._n_images = 0

    def restore(self, state: TrainingState) -> None:
        self.step, self._saved_step, self._history = state.step, state.step, state.history
        epoch, n_used = divmod(self.step, self._n_batches)
        self._batches = islice(self._data.batches(self._recipe.batch_size, self._seed, epoch), n_used, None)
        loss_sum, n_correct, self._n_images = state.sums
        self._loss_sum += loss_sum
        self._n_correct += n_correct
        self._network.load_state_dict(state.network)
        for name, parameter in self._network.named_parameters():
            if name in state.momentum:
                momentum = torch.zeros_like(parameter).copy_(state.momentum[name])
                self._optimiser.state[parameter]["momentum_buffer"] = momentum

    def _copy_state(self) -> TrainingState:
        self._check_finite()
        momentum = {
            name: _copy_to_cpu(self._optimiser.state[parameter]["momentum_buffer"])
            for name, parameter in self._network.named_parameters()
            if self._optimiser.state.get(parameter, {}).get("momentum_buffer") is not None
        }
        sums = float(self._loss_sum), int(self._n_correct), self._n_images
        return TrainingState(self.step, self._copy_weights(), momentum, self._history, sums)

    def make_snapshot(self) -> Snapshot:
        self._check_finite()
        history = (*self._history, self._make_record()) if self._n_images else self._history
        return Snapshot(self.step, self._n_batches, self._copy_weights(), history)

    def run_until(
        self,
        target_step: int,
        state_folder: StateFolder | None,
        on_epoch: Callable[[EpochRecord], None],
        keep_going: Callable[[int], bool],
    ) -> bool:
        """Train up to `target_step`, and save states. Return False if `keep_going` stopped the run before that step."""
        while self.step < target_step and keep_going(self.step):
            self._make_step()
            if self.step % self._n_batches == 0:
                self._end_epoch(on_epoch)
                self._save(state_folder)
        self._save(state_folder)
        return self.step == target_step

    def _save(self, state_folder: StateFolder | None) -> None:
        if state_folder is not None and self.step != self._saved_step:
            state_folder.save(self._copy_state())
            self._saved_step = self.step

    def _make_step(self) -> None:
        epoch = self.step // self._n_batches
        if self.step % self._n_batches == 0:
            self._batches = self._data.batches(self._recipe.batch_size, self._seed, epoch)
        batch = next(self._batches)
        # Reseed, so that random layers such as dropout give the same results after a resume.
        _seed_generators(derived_seed(self._seed, "training", "step", self.step))
        for group in self._optimiser.param_groups:
            group["lr"] = self._recipe.learning_rate_of(self.step, self._n_batches)
        pixels = self._augment(batch.pixels, batch.ids, epoch)
        labels = to_device(batch.labels, self._device)
        self._network.train()
        random_starts = RandomStarts(self._seed, epoch, batch.ids)
        try:
            loss, logits = step_loss(
                self._network, self._logits, pixels, labels, self._recipe.adversarial, random_starts
            )
        except ValueError as error:
            if len(batch.ids) > 1:
                raise
            raise EvaluationError(
                f"Training failed for {self._label}: the last batch of an epoch has only one image, which the "
                f"network rejects ({one_line(error)}). Choose a batch size other than {self._recipe.batch_size}."
            ) from error
        self._optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimiser.step()
        self._loss_sum += loss.detach().double() * len(batch.ids)
        self._n_correct += (logits.argmax(dim=1) == labels).sum()
        self._n_images += len(batch.ids)
        self.step += 1

    def _logits(self, pixels: torch.Tensor) -> torch.Tensor:
        normalised = (pixels - self._mean) / self._std
        return network_logits(self._network, normalised.contiguous(memory_format=self._layout))

    def _end_epoch(self, on_epoch: Callable[[EpochRecord], None]) -> None:
        self._check_loss()
        record = self._make_record()
        self._history = (*self._history, record)
        self._begin_epoch()
        on_epoch(record)

    def _make_record(self) -> EpochRecord:
        epoch = len(self._history)
        rate = self._recipe.learning_rate_of(epoch * self._n_batches, self._n_batches)
        loss, accuracy = float(self._loss_sum) / self._n_images, int(self._n_correct) / self._n_images
        return EpochRecord(epoch + 1, rate, loss, accuracy)

    def _check_loss(self) -> None:
        if not torch.isfinite(self._loss_sum):
            raise self._divergence_error("loss", str(float(self._loss_sum)))

    def _check_finite(self) -> None:
        self._check_loss()
        for name, tensor in self._network.state_dict().items():
            if not torch.isfinite(tensor).all():
                raise self._divergence_error("weights", f"NaN or infinity in {name}")

    def _divergence_error(self, quantity: str, observed: str) -> EvaluationError:
        return EvaluationError(
            f"Training failed for {self._label}: the {quantity} diverged in "
            f"epoch {(self.step - 1) // self._n_batches + 1} ({observed}). Lower the learning rate "
            f"({self._recipe.learning_rate})."
        )

    def _copy_weights(self) -> dict[str, torch.Tensor]:
        return {name: _copy_to_cpu(tensor) for name, tensor in self._network.state_dict().items()}


def _copy_to_cpu(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().cpu().clone(memory_format=torch.contiguous_format)


def _build(space: Space, architecture: ArchitectureId, n_classes: int, seed: int) -> nn.Module:
    _seed_generators(derived_seed(seed, "training", "initial weights"))
    return space.build(architecture, n_classes=n_classes)


def _seed_generators(seed: int) -> None:
    """Seed all global random generators, which users' code may draw from; `_deterministic` restores them."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002


def _initialise(
    space: Space,
    architecture: ArchitectureId,
    n_classes: int,
    seed: int,
    start: Mapping[str, torch.Tensor] | None,
    label: str,
) -> nn.Module:
    network = _build(space, architecture, n_classes, seed)
    if start is not None:
        try:
            network.load_state_dict(start, strict=True)
        except RuntimeError as error:
            raise CheckpointError(
                f"Loading the initial weights failed for {label}: they do not fit this network with "
                f"{n_classes} classes ({one_line(error)}). Start from a training run of the same network."
            ) from error
    return network


def _make_optimiser(network: nn.Module, recipe: Recipe) -> torch.optim.SGD:
    parameters = list(network.parameters())
    groups: list[dict[str, Any]] = [{"params": parameters}]
    if recipe.decay == "weights":
        # Weights of convolutions and linear layers have two or more dimensions; biases and BatchNorm parameters have 1.
        groups = [
            {"params": [parameter for parameter in parameters if parameter.ndim > 1]},
            {"params": [parameter for parameter in parameters if parameter.ndim <= 1], "weight_decay": 0.0},
        ]
    return torch.optim.SGD(
        groups,
        lr=recipe.learning_rate,
        momentum=recipe.momentum,
        weight_decay=recipe.weight_decay,
        nesterov=recipe.nesterov,
    )


def _check_device(device: str, precision: Precision) -> None:
    available = available_device(device)
    if precision == "bf16":
        raise ConfigError("Training failed for precision bf16: only fp32 and tf32 are supported. Choose one of these.")
    check_device(available, precision)


@contextmanager
def _deterministic(device: str, threads: int, precision: Precision) -> Iterator[None]:
    """Set threads, precision and deterministic algorithms. Restore the settings and the random state afterwards."""
    restore_gc_thresholds()  # training can leave large unused objects
    is_on_cpu = device == "cpu"
    with ExitStack() as stack:
        stack.enter_context(restored_random_state(torch.device(device)))
        stack.callback(random.setstate, random.getstate())
        stack.callback(np.random.set_state, np.random.get_state())  # noqa: NPY002
        stack.callback(torch.set_num_threads, torch.get_num_threads())
        # On a GPU, some gradients have no deterministic algorithm, for example the gradient of grid_sample.
        stack.enter_context(worker_settings(torch.device(device), precision, mode="error" if is_on_cpu else "warn"))
        torch.set_num_threads(threads)
        if not is_on_cpu:
            stack.enter_context(warnings.catch_warnings())
            warnings.filterwarnings("ignore", message=".*does not have a deterministic implementation")
        yield


def measure_accuracy(
    space: Space,
    architecture: ArchitectureId,
    state_dict: Mapping[str, torch.Tensor],
    images: ImageSet,
    *,
    device: str = "cpu",
    threads: int = 1,
) -> float:
    """Return the fraction of images that a network with these weights classifies correctly in float32."""
    with _deterministic(device, threads, "fp32"):
        network = space.build(architecture, n_classes=images.n_classes)
        network.load_state_dict(state_dict, strict=True)
        classifier = Classifier(network, images.normalisation, images.n_classes, device=device)
        n_correct = 0
        for start in range(0, len(images), _EVALUATION_BATCH_SIZE):
            batch = slice(start, start + _EVALUATION_BATCH_SIZE)
            logits = classifier.logits(to_device(images.images[batch], classifier.device).float() / 255)
            n_correct += int((logits.argmax(dim=1).cpu().numpy() == images.labels[batch]).sum())
    return n_correct / len(images)
