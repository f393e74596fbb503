"""YAML creates no arbitrary objects (SECURITY.md). Ruff finds unsafe calls, and `test_layers.py` imports of pickle."""

import yaml

from robust201.sweep.sweep_yaml import _StrictLoader


def test_sweep_yaml_loader_is_safe():
    assert issubclass(_StrictLoader, yaml.SafeLoader | yaml.CSafeLoader)
    unsafe_tags = set(yaml.UnsafeLoader.yaml_constructors) | set(yaml.UnsafeLoader.yaml_multi_constructors)
    strict_tags = set(_StrictLoader.yaml_constructors) | set(_StrictLoader.yaml_multi_constructors)
    assert strict_tags & unsafe_tags == set(yaml.SafeLoader.yaml_constructors) & unsafe_tags
