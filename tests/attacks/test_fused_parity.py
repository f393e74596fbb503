"""Bit-for-bit parity of the fused attacks with the libraries on tiny networks, with many and with few iterations."""

import numpy as np
import pytest
import torch
from pyautoattack import fab_projections

from robust201.attacks import hyperplanes
from robust201.attacks.context import to_float
from robust201.networks.classifier import Classifier
from robust201.networks.nb201.cells import specs
from robust201.networks.nb201.compiled import compile_network
from robust201.tasks import TASKS
from tests.networks.test_inference import N_CLASSES as N_COMPILED_CLASSES
from tests.networks.test_inference import NORMALISATION as COMPILED_NORMALISATION
from tests.networks.test_inference import images_of, network_of
from tests.support.library_parity import compare, fused_images, library_images
from tests.support.tiny_networks import NORMALISATION, PathlessNetwork, TinyNetwork, tiny_classifier, tiny_images

SEED = 5
FULL_PARAMETERS = {
    "fgsm": {"epsilons": ("0.5/255", "8/255", "255/255")},
    "pgd": {"epsilons": ("0.5/255", "3/255", "8/255")},
    "pgd_linf7": {"epsilons": ("0.5/255", "3/255", "8/255")},
    "pgd_l2": {"epsilons": (0.02, 0.15, 0.5), "step_size": 0.02},
    "aa_apgd-ce": {"epsilons": ("0.5/255", "3/255", "8/255")},
    "aa_apgd-ce_l2": {"epsilons": (0.02, 0.15, 0.5)},
    "aa_apgd-ce_l1": {"epsilons": (0.2, 1.0, 4.0), "restarts": 1, "larger_epsilons": False},
    "aa_square": {"epsilons": ("0.5/255", "3/255", "8/255"), "queries": 240},
}
every_attack = pytest.mark.parametrize("key", list(FULL_PARAMETERS))

FEW_STEPS = {"steps": 12, "queries": 40}
"""Few steps and queries that reach all branches. APGD can first halve step sizes after step 2."""


def parameters_of(key, **changes):
    return TASKS[key].parameters(**FULL_PARAMETERS[key] | changes)


def short_parameters(key):
    """Return the parameters of an attack with few steps or queries."""
    return parameters_of(key, **{name: value for name, value in FEW_STEPS.items() if name in TASKS[key].field_names})


def assert_parity(key, classifier, image_set, parameters):
    images, labels = torch.from_numpy(image_set.images), torch.from_numpy(image_set.labels)
    differences = compare(key, classifier, images, labels, parameters, seed=SEED)
    n_differing_bits = {key: (value.image_bits, value.logit_bits) for key, value in differences.items()}
    assert n_differing_bits == dict.fromkeys(parameters.strengths, (0, 0))
    return differences


@every_attack
def test_parity_on_tiny_network(key):
    differences = assert_parity(key, tiny_classifier(), tiny_images(), parameters_of(key))
    weakest, strongest = next(iter(differences.values())), list(differences.values())[-1]
    # Some images are fooled at the first step, some later and some never, so all branches are tested.
    assert strongest.n_changed > weakest.n_changed or not key.startswith("aa_")
    assert 0 < strongest.n_correct < weakest.n_correct or key == "fgsm"


@every_attack
def test_parity_with_a_hundred_classes(key):
    classifier = Classifier(TinyNetwork(n_classes=100), NORMALISATION, 100)
    assert_parity(key, classifier, tiny_images(classifier=classifier), short_parameters(key))


@every_attack
@pytest.mark.parametrize(
    ("logits", "has_gradients"),
    [([0.0, 3.0, 1.0, -2.0, 0.5], False), ([0.0] * 5, True)],
    ids=["constant logits without gradients", "tied logits with zero gradients"],
)
def test_parity_on_constant_networks(key, logits, has_gradients):
    images = tiny_images(labels=np.arange(21) % 5)
    parameters = short_parameters(key)
    assert_parity(key, tiny_classifier(PathlessNetwork(logits, has_gradients=has_gradients)), images, parameters)


@every_attack
@pytest.mark.parametrize("n_correct", [0, 1, 2])
@pytest.mark.slow_combinations
def test_parity_with_few_correct_images(key, n_correct):
    predicted = tiny_classifier()(torch.from_numpy(tiny_images().images) / 255).argmax(dim=1).numpy()
    labels = (predicted + 1) % 5
    labels[:n_correct] = predicted[:n_correct]
    assert_parity(key, tiny_classifier(), tiny_images(labels=labels), short_parameters(key))


@every_attack
def test_parity_with_one_image(key):
    assert_parity(key, tiny_classifier(), tiny_images(1), short_parameters(key))


# With 12 steps, APGD halves its step size. With 3 steps, the last iterate of an image that was fooled is classified
# correctly again; the attack returns its last misclassified iterate.
CHANGED_PARAMETERS = [
    *(("pgd", {"steps": 10, "random_start": is_random, "target": "none"}) for is_random in (True, False)),
    *(("pgd", {"steps": 10, "random_start": is_random, "target": "least_likely"}) for is_random in (True, False)),
    *(("aa_apgd-ce", {"steps": steps}) for steps in (1, 2, 3, 33)),
    ("aa_apgd-ce", {"steps": 12, "restarts": 3}),
    ("aa_square", {"queries": 40, "restarts": 3}),
    ("aa_square", {"queries": 60, "p_init": 0.05}),
    ("aa_square", {"queries": 60, "p_init": 1.0}),
]


@pytest.mark.parametrize(("key", "changes"), CHANGED_PARAMETERS, ids=str)
def test_parity_with_other_parameters(key, changes):
    assert_parity(key, tiny_classifier(), tiny_images(), parameters_of(key, **changes))


VARIANT_PARAMETERS = {
    "aa_apgd-ce_l1": {"epsilons": (0.2, 4.0), "steps": 12, "restarts": 2},
    "aa_apgd-t": {"epsilons": ("0.5/255", "8/255"), "steps": 12, "restarts": 2},
    "aa_apgd-t_l2": {"epsilons": (0.05, 0.5), "steps": 12, "restarts": 2},
    "aa_apgd-t_l1": {"epsilons": (0.2, 4.0), "steps": 12, "restarts": 2},
    "aa_square_l2": {"epsilons": (0.05, 0.5, 1.5), "queries": 30, "restarts": 2},
    "aa_square_l1": {"epsilons": (0.5, 4.0, 12.0), "queries": 30, "restarts": 2},
    "aa_fab-t": {"epsilons": ("1/255", "8/255"), "steps": 6, "targets": 9},
    "aa_fab-t_l2": {"epsilons": (0.05, 0.5), "steps": 6, "targets": 9},
    "aa_fab-t_l1": {"epsilons": (0.2, 4.0), "steps": 6, "targets": 9},
}


@pytest.mark.parametrize("key", VARIANT_PARAMETERS)
def test_parity_of_variants(key):
    parameters = TASKS[key].parameters(**VARIANT_PARAMETERS[key])
    differences = list(assert_parity(key, tiny_classifier(), tiny_images(), parameters).values())
    assert differences[0].n_changed < differences[-1].n_changed


@pytest.mark.parametrize(
    ("steps", "step_size", "random_start"), [(1, 0.1, True), (2, 3.0, False), (40, 0.005, False), (40, 0.1, True)]
)
def test_parity_of_pgd_l2_variants(random_start, steps, step_size):
    parameters = parameters_of("pgd_l2", random_start=random_start, steps=steps, step_size=step_size)
    differences = assert_parity("pgd_l2", tiny_classifier(), tiny_images(), parameters)
    assert all(difference.n_changed == len(tiny_images()) for difference in differences.values())


@pytest.mark.parametrize("key", ["pgd_linf7", "pgd_l2"])
def test_parity_of_pgd_away_from_predicted_labels(key):
    parameters = parameters_of(key, label="predicted", steps=7)
    assert_parity(key, tiny_classifier(), tiny_images(), parameters)
    default_parameters = parameters_of(key, steps=7)
    images, labels = torch.from_numpy(tiny_images().images), torch.from_numpy(tiny_images().labels)
    epsilons = [TASKS[key].constraint.radius(strength) for strength in default_parameters.strengths]
    from_label, from_prediction = (
        fused_images(key, tiny_classifier(), images, labels, epsilons, SEED, variant)
        for variant in (default_parameters, parameters)
    )
    # The prediction of one image in four differs from the label, so its attack differs, too.
    assert (from_label != from_prediction).flatten(2).any(dim=2).sum(dim=1).tolist() == [5, 5, 5]


@pytest.mark.parametrize("random_start", [True, False])
def test_pgd_l2_on_compiled_network_matches_library_within_rounding(random_start):
    spec = specs()[21]
    network = network_of(spec, channels=8)
    classifier = Classifier(network, COMPILED_NORMALISATION, N_COMPILED_CLASSES)
    compiled = compile_network(network, spec, COMPILED_NORMALISATION)
    pixels, labels = images_of(16, n_images=9)
    images, labels = (pixels * 255).to(torch.uint8), labels % N_COMPILED_CLASSES
    epsilons = (0.25, 0.5)
    parameters = TASKS["pgd_l2"].parameters(epsilons=epsilons, steps=5, random_start=random_start)
    perturbed = fused_images("pgd_l2", classifier, images, labels, epsilons, SEED, parameters, model=compiled)
    for epsilon, result in zip(epsilons, perturbed, strict=True):
        expected = library_images("pgd_l2", classifier, to_float(images), labels, epsilon, SEED, parameters)
        assert (result - expected).flatten(1).norm(dim=1).max() < 1e-3 * epsilon
        torch.testing.assert_close(compiled.logits(result), classifier.logits(expected), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_projections_onto_hyperplanes_match_library(norm):
    generator = torch.Generator().manual_seed(SEED)
    points = torch.rand(3000, 20, generator=generator)
    weights = torch.randn(3000, 20, generator=generator)
    weights[:, ::2] = 0  # entries without a weight must not move
    # The offsets give near hyperplanes, ones that are reached after entries become 0 or 1, and ones outside the cube.
    offsets = (weights * points).sum(1) + torch.tensor([0.01, 0.5, 2.0, 100.0]).repeat(750)
    moves = getattr(hyperplanes, f"project_{norm}")(points, weights, offsets)
    expected = getattr(fab_projections, f"projection_{norm}")(points, weights, offsets)
    torch.testing.assert_close(moves, expected, rtol=0, atol=1e-5)
    assert not moves[:, ::2].any()
