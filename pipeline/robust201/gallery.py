"""Figures of single images under attack: the clean image, the perturbation, the attacked image and the predictions."""

import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from robust201.analysis.labels import key_label, strength_label
from robust201.analysis.network_context import as_normalisation
from robust201.analysis.requested_keys import parse_key
from robust201.api import attack
from robust201.attacks.context import to_float
from robust201.core.errors import ConfigError, RobustWarning
from robust201.core.radii import parse_radius
from robust201.core.records import Normalisation
from robust201.images.user_arrays import as_image_set
from robust201.networks.classifier import Classifier
from robust201.networks.user_module import as_classifier
from robust201.tasks.strengths import unit_of

if TYPE_CHECKING:
    import altair as alt

MAX_SHOWN = 20
"""Maximum number of images in a figure."""


def show(
    model: nn.Module,
    images: Any,
    labels: Any = None,
    key: str = "pgd",
    *,
    epsilon: float | str | None = None,
    normalisation: Normalisation | tuple[Sequence[float], Sequence[float]] | None = None,
    class_names: Sequence[str] | None = None,
    **parameters: Any,
) -> "alt.LayerChart":
    """Attack images and draw them, with the predicted classes and their confidences (softmax probabilities).

    The perturbation is drawn on grey, and scaled so that its largest value fills the pixel range. The
    caption below it is the scaling factor.

    Args:
        model: see `evaluate`.
        images: one image (3, H, W), or up to `MAX_SHOWN`; see `evaluate`.
        labels: class of each image.
        key: key of an attack, or an attack at an epsilon, such as ``"pgd:8/255"``.
        epsilon: radius of the ball, for pixels in [0, 1]: a number, or text such as ``"8/255"``. By default the
            attack's largest radius.
        normalisation: see `evaluate`.
        class_names: one name per class; by default the classes' numbers.
        parameters: parameters of the attack, and further arguments of `attack`, such as ``seed=1``.

    Returns:
        An Altair chart, which notebooks display; ``.save("attacked.png")`` saves it.

    Raises:
        ConfigError: there are too many images or a wrong number of class names; or see `attack`.
        DatasetError, EvaluationError: see `attack`.
    """
    from robust201.figures.image_grid import draw_image_grid

    if labels is not None and np.ndim(images) == 3:
        images, labels = images[None], np.atleast_1d(labels)
    image_set = as_image_set(images, labels)
    n_images = len(image_set.labels)
    if n_images > MAX_SHOWN:
        raise ConfigError(
            f"Showing images failed: a figure has at most {MAX_SHOWN} images, got {n_images}. Select fewer."
        )
    task, term_fields = parse_key(key)
    if term_fields and epsilon is None:
        (epsilon,) = term_fields["epsilons"]
        key = task.key
    if epsilon is None and "epsilons" not in parameters and task.constraint is not None:
        epsilon = max(task.defaults["epsilons"], key=parse_radius)
    attacked = attack(
        model,
        image_set.images,
        image_set.labels,
        key,
        epsilon=epsilon,
        normalisation=normalisation,
        **parameters,
    )[-1]
    clean = to_float(torch.from_numpy(image_set.images)).to(attacked.device)
    with warnings.catch_warnings(), ExitStack() as stack:
        warnings.simplefilter("ignore", RobustWarning)  # `attack` has already warned about the network
        classifier = stack.enter_context(as_classifier(model, image_set, normalisation=as_normalisation(normalisation)))
        stack.enter_context(torch.no_grad())
        display_names = _name_classes(class_names, classifier.n_classes)
        clean_captions, attacked_captions = (
            _describe_predictions(classifier, pixels, display_names) for pixels in (clean, attacked)
        )
    changes = (attacked - clean).cpu().numpy()
    rows = []
    for index in range(n_images):
        largest_change = float(np.abs(changes[index]).max())
        scale_caption = f"× {0.5 / largest_change:.0f}" if largest_change else "unchanged"
        scaled_change = 0.5 + changes[index] / (2 * max(largest_change, 1e-9))
        clean_pixels, attacked_pixels = (pixels[index].cpu().numpy() for pixels in (clean, attacked))
        rows.append(
            [
                (clean_pixels, clean_captions[index]),
                (scaled_change, scale_caption),
                (attacked_pixels, attacked_captions[index]),
            ]
        )
    attack_label = key_label(key)
    if task.constraint is not None and epsilon is not None:
        unit = unit_of(task.constraint, task.kind)
        attack_label += f", {strength_label(task.constraint.strength_of(epsilon), unit)}"
    row_labels = [display_names[label] for label in image_set.labels]
    return draw_image_grid(rows, column_labels=["clean", "change", attack_label], row_labels=row_labels)


def _name_classes(names: Sequence[str] | None, n_classes: int) -> list[str]:
    if names is None:
        return [f"class {label}" for label in range(n_classes)]
    if len(names) != n_classes:
        raise ConfigError(
            f"Showing images failed for `class_names`: the network has {n_classes} classes, but there are {len(names)} "
            "names. Pass one name per class."
        )
    return list(names)


def _describe_predictions(classifier: Classifier, pixels: torch.Tensor, class_names: Sequence[str]) -> list[str]:
    confidences, predictions = classifier(pixels).softmax(dim=1).max(dim=1)
    return [
        f"{class_names[label]}, {confidence:.0%}"
        for label, confidence in zip(predictions.tolist(), confidences.tolist(), strict=True)
    ]
