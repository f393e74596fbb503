"""Public names of the package."""

import subprocess
import sys

import robust201


def test_dir_lists_only_public_names() -> None:
    assert dir(robust201) == sorted(robust201.__all__)
    assert all(hasattr(robust201, name) for name in dir(robust201))


def test_dir_loads_no_heavy_libraries() -> None:
    program = "import sys, robust201; dir(robust201); print({'torch', 'numpy', 'pandas'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout == "set()\n"
