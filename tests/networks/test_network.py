"""The network's outputs equal the published network's outputs, which are in a golden file created with xautodl."""

import json

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from robust201.networks.nb201 import cells as nasbench201
from robust201.networks.nb201.network import Network
from tests.golden.make_network_golden import GOLDEN_FILE, fill_state, make_pixels, state_signature

GOLDEN = json.loads(GOLDEN_FILE.read_text())
CASES = GOLDEN["cases"]
CELLS_WITHOUT_PATH = {10, 12, 74, 172, 879, 1651}
SIZE = {"channels": GOLDEN["channels"], "cells": GOLDEN["cells"]}


def case_id(case):
    return f"{case['index']}-{case['n_classes']}"


def test_golden_file_covers_the_space():
    assert len({case["index"] for case in CASES}) >= 50
    assert {10, 100, 120} == {case["n_classes"] for case in CASES}
    edge_operations = {pair for case in CASES for pair in enumerate(nasbench201.parse(case["spec"]))}
    assert len(edge_operations) == len(nasbench201.EDGES) * len(nasbench201.OPERATIONS)
    assert {case["index"] for case in CASES} >= CELLS_WITHOUT_PATH
    for case in CASES:
        logits = np.array(case["logits"])
        # If the logits did not depend on the images, comparing them would test little.
        assert (abs(logits[0] - logits[1]).max() > 0.02) == (case["index"] not in CELLS_WITHOUT_PATH), case_id(case)
        assert abs(logits).max() < 10


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_network_equals_published_network(case):
    assert nasbench201.specs()[case["index"]] == case["spec"]
    network = Network(case["spec"], n_classes=case["n_classes"], **SIZE).eval()
    state = network.state_dict()
    assert len(state) == case["state_length"]
    assert state_signature(state) == case["state_signature"]
    network.load_state_dict(fill_state(state, case["feature_scale"]), strict=True)
    with torch.inference_mode():
        features, logits = network.features(make_pixels(case["image_size"])), network(make_pixels(case["image_size"]))
    np.testing.assert_allclose(features.numpy(), case["features"], rtol=0, atol=1e-5)
    np.testing.assert_allclose(logits.numpy(), case["logits"], rtol=0, atol=1e-5)
    assert case["parameters"] == nasbench201.parameter_count(case["spec"], n_classes=case["n_classes"], **SIZE)


def test_network_supports_other_channels_and_cells():
    spec = nasbench201.specs()[13714]
    for channels, cells, n_classes in ((4, 1, 7), (8, 2, 10), (5, 3, 2)):
        network = Network(spec, channels=channels, cells=cells, n_classes=n_classes)
        n_parameters = sum(parameter.numel() for parameter in network.parameters())
        sizes = {"channels": channels, "cells": cells, "n_classes": n_classes}
        assert n_parameters == nasbench201.parameter_count(spec, **sizes)
        assert network.features(torch.rand(2, 3, 32, 32)).shape == (2, 4 * channels)
        assert network(torch.rand(2, 3, 32, 32)).shape == (2, n_classes)


def test_multiply_accumulates_match_the_layers():
    spec, size = nasbench201.specs()[50], 16
    network = Network(spec, channels=4, cells=2, n_classes=6).eval()
    with FlopCounterMode(display=False) as counter:
        network(torch.rand(1, 3, size, size))
    # PyTorch counts two operations per multiply-accumulate, and none for the six biases of the linear layer.
    n_macs = counter.get_total_flops() / 2 + 6
    assert n_macs == nasbench201.multiply_accumulates(spec, channels=4, cells=2, n_classes=6, image_size=size)
