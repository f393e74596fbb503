"""Values in YAML files are read as written: numbers are decimal, and words and dates are text."""

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from robust201.core.errors import ArchitectureError, ConfigError
from robust201.sweep.loading import load_config, load_training
from robust201.sweep.sweep_yaml import dump_fields, read_fields

SWEEP = "name: x\nresults: r\ndatasets: {{digits: {{}}}}\ncheckpoints: {{path: x}}\n{}\n"
RECIPE = "{{epochs: 1, batch_size: 8, learning_rate: .1, weight_decay: 0, schedule: {{cosine: {{}}}}}}"
TRAINING = f"name: x\nstore: s\ndatasets: {{{{digits: {{{{}}}}}}}}\nrecipes: {{{{a: {RECIPE}}}}}\n{{}}\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "file.yaml"


def test_numbers_with_leading_zeros_are_decimal(path):
    path.write_text(
        SWEEP.format(
            "architectures: [000012, 000020-000021, '000010', 0089]\nimages: {count: 0100}\nseed: -010\n"
            "keys: {pgd: {epsilons: [2.5e-1, 00.5, 1e0, 02e-1]}}"
        )
    )
    config = load_config(path)
    assert config.selected_architectures == (10, 12, 20, 21, 89)
    assert (config.images.count, config.seed) == (100, -10)
    assert config.parameters["pgd"].epsilons == (0.25, 0.5, 1, 0.2)
    path.write_text(TRAINING.format("architectures: [010]\nseeds: [007, 08]"))
    training = load_training(path)
    assert (training.selected_architectures, training.seeds) == ((10,), (7, 8))


@pytest.mark.parametrize("value", ["0x10", "0o12", "1_000", "1:30"])
@pytest.mark.parametrize("template", [SWEEP, TRAINING])
def test_numbers_in_other_notations_are_errors(path, value, template):
    path.write_text(template.format(f"architectures:\n- 1\n- {value}"))
    with pytest.raises((ConfigError, ArchitectureError), match=rf"{path}, line \d+: .*{value}"):
        load_config(path) if template == SWEEP else load_training(path)


def test_words_dates_and_field_names_are_text(path):
    path.write_text("a: [yes, no, on, off, 2024-01-01, '0x10']\n010: [true, False, null, .inf]\non: 1\n")
    assert read_fields(path) == {
        "a": ["yes", "no", "on", "off", "2024-01-01", "0x10"],
        "010": [True, False, None, float("inf")],
        "on": 1,
    }


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.from_regex(r"[-+.0-9xXobeE_:a-f]{1,8}", fullmatch=True)
)


@given(SCALARS)
@example("0o12")
@example("1e3")
@example(1e-6)
def test_dumped_values_are_read_unchanged(tmp_path_factory, value):
    path = tmp_path_factory.mktemp("dumped") / "file.yaml"
    path.write_text(dump_fields({"value": value, str(value): 0}))
    assert repr(read_fields(path)) == repr({"value": value, str(value): 0})
