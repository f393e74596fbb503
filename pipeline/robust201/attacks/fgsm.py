"""Fast gradient sign method.

Source: Goodfellow, Shlens and Szegedy, "Explaining and Harnessing Adversarial Examples", ICLR 2015;
`foolbox.attacks.LinfFastGradientAttack`. The attack takes one step of size epsilon from the clean image along the sign
of the cross-entropy's gradient, and clips to [0, 1]. It uses no random numbers, and attacks every image. The gradient
at the clean image serves all epsilons.
"""

import torch

from robust201.attacks.batching import BatchedModel
from robust201.attacks.pgd import project_to_cube
from robust201.attacks.samples import Samples
from robust201.tasks.attacks import Fgsm


def attack(model: BatchedModel, samples: Samples, _options: Fgsm) -> torch.Tensor:
    """Return the images after one step."""
    images, rows = samples.unique_images()
    direction = model.loss_and_gradient(images.clean, images.labels)[2].sign().index_select(0, rows)
    stepped = direction.mul_(samples.epsilons).add_(samples.clean)
    # Foolbox projects to the ball, clips to [0, 1], and projects again. Repeat all three, because each of them rounds.
    clipped = project_to_cube(stepped, samples.clean, samples.epsilons).clamp_(0, 1)
    return project_to_cube(clipped, samples.clean, samples.epsilons)
