"""Networks in users' files: imports from the file's folder, names and options."""

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from robust201.analysis.named_networks import UserNetwork, parse_user_network, read_network
from robust201.core.errors import ConfigError


def write_repository(folder: Path, value: float) -> str:
    """Write a file that imports a module and a package from its folder, and return FILE:FUNCTION."""
    (folder / "models").mkdir(parents=True)
    (folder / "models" / "__init__.py").write_text("from models.parts import make\n")
    (folder / "models" / "parts.py").write_text(
        "import torch\nfrom torch import nn\nfrom shared_settings import VALUE\n\ndef make():\n"
        "    layer = nn.Linear(1, 1)\n    nn.init.constant_(layer.weight, VALUE)\n    return layer\n"
    )
    (folder / "shared_settings.py").write_text(f"VALUE = {value}\n")
    (folder / "net.py").write_text(
        "import models\n\ndef build():\n    from shared_settings import VALUE\n    return models.make()\n"
    )
    return f"{folder}/net.py:build"


def test_files_import_modules_only_from_their_own_folder(tmp_path):
    sys_path_before, modules_before = [*sys.path], {*sys.modules}
    for name, value in (("a", 1.0), ("b", 2.0)):
        network = parse_user_network(write_repository(tmp_path / name, value))
        layer = network.build()
        assert isinstance(layer, nn.Linear)
        assert layer.weight.item() == value
    assert sys.path == sys_path_before
    assert not {"models", "models.parts", "shared_settings"} & ({*sys.modules} - modules_before)


def test_read_network_parses_name_weights_and_normalisation(tmp_path):
    network_spec = write_repository(tmp_path / "a", 1.0)
    torch.save({"weight": torch.full((1, 1), 3.0), "bias": torch.zeros(1)}, tmp_path / "w.pth")
    options = f",weights={tmp_path}/w.pth,mean=0.1,0.2,0.3,std=0.5,0.6,0.7"
    ((name, network),) = read_network(f"plain={network_spec}{options}").items()
    assert isinstance(network, UserNetwork)
    assert name == "plain"
    assert network.normalisation is not None
    assert (network.normalisation.mean, network.normalisation.std) == ((0.1, 0.2, 0.3), (0.5, 0.6, 0.7))
    assert network.build().weight.item() == 3.0
    assert [*read_network(network_spec)] == [network_spec]


@pytest.mark.parametrize("options", [",mean=1", ",std=1,mean=1,2", ",weight=a", ",weights=", ",mean=0,std=1,mean=0"])
def test_parse_user_network_rejects_wrong_options(tmp_path, options):
    network_spec = write_repository(tmp_path / "a", 1.0) + options
    with pytest.raises(ConfigError, match=r"Reading networks failed for .*net\.py:build") as caught:
        parse_user_network(network_spec)
    assert "\n" not in str(caught.value)
