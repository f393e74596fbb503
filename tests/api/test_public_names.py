"""Public names of the package."""

import subprocess
import sys

import robust201


def test_dir_lists_only_public_names():
    assert dir(robust201) == sorted(robust201.__all__)
    assert all(hasattr(robust201, name) for name in dir(robust201))


def test_evaluations_load_few_modules():
    program = """
import sys, numpy as np, robust201
from torch import nn
images = np.random.default_rng(0).integers(0, 256, (20, 3, 8, 8), dtype=np.uint8)
network = nn.Sequential(nn.Flatten(), nn.Linear(192, 5))
robust201.evaluate(network, images, np.arange(20) % 5, ["clean", "pgd:8/255"], progress=False)
print(sum(name.partition(".")[0] == "robust201" for name in sys.modules))
"""
    command = [sys.executable, "-W", "ignore", "-c", program]
    assert int(subprocess.run(command, capture_output=True, text=True, check=True).stdout) <= 60
