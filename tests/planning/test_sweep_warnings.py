"""Omitted evaluations and doubtful values of sweeps give warnings, and epsilons may be fractions of the pixel range."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from robust201.core.errors import ConfigError, did_you_mean
from robust201.planning.loading import parse_config
from robust201.planning.sweep_warnings import find_sweep_warnings
from robust201.planning.user_tasks import UserTaskParameters
from robust201.reader.arguments import as_strength
from robust201.tasks import PAPER_KEYS, TASKS
from tests.conftest import MakeFields, RunCommand, WriteSweep

WITHOUT_CORRUPTION_SOURCE: dict[str, Any] = {"datasets": {"digits": {}}}


def test_individual_corruption_without_images_is_rejected(robust201: RunCommand, write_sweep: WriteSweep) -> None:
    sweep = write_sweep(keys={"clean": {}, "fog": {}}, **WITHOUT_CORRUPTION_SOURCE)
    for subcommand in ("plan", "run", "submit slurm"):
        error_line = robust201(*subcommand.split(), sweep).error_line(2)
        assert "keys.fog: expected a source of corrupted images for digits, got none" in error_line
        assert "`corruptions: {source: generated}` under datasets.digits" in error_line
    assert robust201("doctor", sweep).code == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"keys": {"clean": {}, "corruptions": {}}, **WITHOUT_CORRUPTION_SOURCE},
            "not evaluated on digits: 15 corruptions",
        ),
        ({"keys": None, **WITHOUT_CORRUPTION_SOURCE}, "not evaluated on digits: 15 corruptions"),
        (
            {"keys": {"clean": {}, "fog": {}}, "datasets": {"digits": {"corruptions": None}}},
            "not evaluated on digits: fog",
        ),
    ],
    ids=["group", "default keys", "explicit null"],
)
def test_omitted_corruptions_are_reported(
    robust201: RunCommand, write_sweep: WriteSweep, sweep_fields: MakeFields, changes: dict[str, Any], message: str
) -> None:
    sweep = write_sweep(**changes)
    if changes["keys"] is None:
        fields = yaml.safe_load(sweep.read_text())
        del fields["keys"]
        sweep.write_text(yaml.safe_dump(fields))
    result = robust201("plan", "--json", sweep)
    assert result.code == 0
    assert f"warning: {message}" in result.err
    assert any(message in line for line in json.loads(result.out)["warnings"])
    checks = {check["detail"]: check for check in json.loads(robust201("doctor", "--json", sweep).out)}
    (warning,) = (check for detail, check in checks.items() if detail.startswith(message))
    assert warning["ok"]
    assert warning["warns"]
    assert "source: generated" in warning["fix"]


def test_run_and_card_report_omitted_corruptions(
    robust201: RunCommand, write_sweep: WriteSweep, tmp_path: Path
) -> None:
    sweep = write_sweep(keys={"clean": {}, "corruptions": {}}, **WITHOUT_CORRUPTION_SOURCE)
    assert "warning: not evaluated on digits: 15 corruptions" in robust201("run", sweep).err
    assert robust201("export", tmp_path / "results", "--out", tmp_path / "out").code == 0
    card = (tmp_path / "out/README.md").read_text()
    assert "Not evaluated on digits: `brightness`, `contrast`, " in card
    # The exported sweep omits the same keys and can be run again.
    exported_fields = yaml.safe_load((tmp_path / "out/sweep.yaml").read_text())
    assert len(parse_config(exported_fields, "test").omitted_keys("digits")) == 15


def test_plan_of_earlier_version_is_readable(make_sweep: Any) -> None:
    config = make_sweep(keys={"clean": {}, "corruptions": {}}, **WITHOUT_CORRUPTION_SOURCE)
    old_fields = json.loads(json.dumps(config.model_dump(mode="json")))
    old_fields["keys"] = {"clean": {}, "fog": {}}  # accepted by earlier versions, so plan.json may contain it
    assert parse_config(old_fields, "plan.json").omitted_keys("digits") == ("fog",)


@pytest.mark.parametrize(
    ("mean", "std", "message"),
    [
        (
            [125, 123, 114],
            [0.2] * 3,
            "mean: expected numbers from 0 to 1, since pixels are in [0, 1], got 125, 123",
        ),
        ([0.5] * 3, [63, 62, 66], "std: expected numbers above 0 and up to 1, since pixels are in [0, 1], got 63, 62,"),
    ],
)
def test_normalisation_for_pixels_up_to_255_is_rejected_in_yaml_only(
    robust201: RunCommand, write_sweep: WriteSweep, make_sweep: Any, mean: Any, std: Any, message: str
) -> None:
    datasets = {"digits": {"normalisation": {"mean": mean, "std": std}}}
    error_line = robust201("plan", write_sweep(keys={"clean": {}}, datasets=datasets)).error_line(2)
    assert ", line " in error_line
    assert f"datasets.digits.normalisation.{message}" in error_line
    config = make_sweep(keys={"clean": {}}, datasets=datasets)  # as in the plan.json of older results
    assert config.dataset_spec("digits").normalisation.mean == tuple(mean)


def test_run_rejects_selected_key_without_images(robust201: RunCommand, write_sweep: WriteSweep) -> None:
    sweep = write_sweep(keys={"clean": {}, "corruptions": {}}, **WITHOUT_CORRUPTION_SOURCE)
    error_line = robust201("run", sweep, "--keys", "clean,fog").error_line(2)
    assert "failed for fog: tiny does not evaluate these keys on digits" in error_line


@pytest.mark.parametrize(
    ("key", "parameters", "message"),
    [
        ("pgd", {"steps": 10}, "rel_stepsize = 10 × 0.0333 = 0.3333, so the attack does not reach"),
        ("pgd", {"steps": 10, "rel_stepsize": 0.0999}, "rel_stepsize = 10 × 0.0999 = 0.999"),
        ("pgd", {"steps": 5, "rel_stepsize": 0.1, "random_start": False}, "rel_stepsize = 5 × 0.1 = 0.5"),
        ("pgd_linf7", {"rel_stepsize": 0.1}, "rel_stepsize = 7 × 0.1 = 0.7"),
        (
            "pgd_l2",
            {"epsilons": [0.25, 20]},
            "step_size = 100 × 0.1 = 10, so the attack does not reach the edge of a ball of",
        ),
    ],
)
def test_steps_too_short_for_the_ball_give_warning(make_sweep: Any, key: str, parameters: Any, message: str) -> None:
    config = make_sweep(keys={"clean": {}, key: parameters})
    (warning,) = find_sweep_warnings(config)
    assert warning.problem.startswith(f"keys.{key}.steps: steps × {message}")
    ((field, step_size),) = re.findall(r"such as (\w+): ([\d.]*\d)\.", warning.remedy)
    assert find_sweep_warnings(make_sweep(keys={"clean": {}, key: parameters | {field: float(step_size)}})) == []


@pytest.mark.parametrize("key", [key for key, task in TASKS.items() if task.kind == "attack"])
@given(n_steps=st.integers(1, 999))
def test_defaults_and_steps_that_reach_the_edge_give_no_warning(key: str, n_steps: int) -> None:
    fields = TASKS[key].field_names
    assert TASKS[key].parameters().cautions == ()
    exact_lengths = {"rel_stepsize": 1 / n_steps, "step_size": 0.5 / n_steps}.items()
    parameters = {field_name: length for field_name, length in exact_lengths if field_name in fields}
    if parameters:
        assert TASKS[key].parameters(steps=n_steps, **parameters).cautions == ()


def test_plan_run_and_doctor_warn_about_short_steps(robust201: RunCommand, write_sweep: WriteSweep) -> None:
    sweep = write_sweep(keys={"clean": {}, "pgd": {"epsilons": ["8/255"], "steps": 2}})
    for verb in ("plan", "run"):
        assert "warning: keys.pgd.steps: steps × rel_stepsize = 2 × 0.0333 = 0.06667, so" in robust201(verb, sweep).err
    assert "such as rel_stepsize: 1." in robust201("doctor", sweep).out


def test_plan_warns_about_images_that_cannot_be_counted(robust201: RunCommand, write_sweep: WriteSweep) -> None:
    datasets = {"mine": {"path": "no-such-folder", "classes": 10, "image_size": 8}}
    result = robust201("plan", write_sweep(datasets=datasets, keys={"clean": {}}, images={}))
    assert result.code == 0, result.err
    assert "warning: the images of mine cannot be read from no-such-folder" in result.err


@pytest.mark.parametrize(
    ("epsilons", "expected"),
    [
        (["8/255"], (8.0,)),
        (["1/255", 8 / 255, "0.5/255"], (0.5, 1.0, 8.0)),
        ([" 4 / 255 ", "0.1/255"], (0.1, 4.0)),
        ("8/255", (8.0,)),
        (8 / 255, (8.0,)),
        ([1, "0.5"], (127.5, 255.0)),
    ],
)
def test_epsilons_are_converted_from_fractions_of_the_pixel_range(epsilons: Any, expected: tuple[float, ...]) -> None:
    assert TASKS["pgd"].parameters(epsilons=epsilons).strengths == expected


def test_fractions_of_255_are_converted_exactly() -> None:
    for k in range(1, 256):
        for epsilon in (k / 255, f"{k}/255"):
            assert TASKS["pgd"].parameters(epsilons=[epsilon]).strengths == (float(k),)


def test_l2_epsilons_may_be_fractions() -> None:
    assert TASKS["pgd_l2"].parameters(epsilons=["128/255", 0.25]).strengths == (0.25, 128 / 255)


@pytest.mark.parametrize(
    ("epsilons", "message"),
    [
        ([8], "up to 1, for pixels in [0, 1], such as 8/255, got 8."),
        (["x"], "expected numbers above 0 or text such as 8/255, got 'x'"),
        (["1/0"], "got '1/0'"),
        (["1e999999/255"], "got '1e999999/255'"),
        ([float("nan")], "got nan"),
        ([-1], "got -1."),
        ({"a": 1}, "got {'a': 1}"),
    ],
)
def test_invalid_epsilons_are_rejected(make_sweep: Any, epsilons: Any, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        make_sweep(keys={"pgd": {"epsilons": epsilons}})
    assert message in str(error.value)
    assert "keys.pgd" in str(error.value)


def test_as_strength_suggests_unit() -> None:
    with pytest.raises(
        ConfigError, match=r"Epsilons are in units of 1/255: write 8 for 8/255\. Choose one of the expected"
    ):
        as_strength(8 / 255, (0.1, 1.0, 8.0), "Looking up failed")
    with pytest.raises(ConfigError, match=r"The closest is 0\.1\."):
        as_strength(0.2, (0.1, 1.0, 8.0), "Looking up failed")


@pytest.mark.parametrize(
    ("name", "known_names", "expected"),
    [
        ("eps", TASKS["pgd"].field_names, "epsilons"),
        ("PGD", TASKS, "pgd"),
        ("Clean", PAPER_KEYS, "clean"),
        ("gauss", PAPER_KEYS, "gaussian_noise"),
        ("step", TASKS["pgd"].field_names, "steps"),
        ("pdg", TASKS, "pgd"),
    ],
)
def test_did_you_mean_suggests_nearest_name(name: str, known_names: Any, expected: str) -> None:
    assert did_you_mean(name, known_names) == f" Did you mean {expected!r}?"


def test_default_normalisation_of_user_networks_gives_warning(make_sweep: Any, tmp_path: Path) -> None:
    (tmp_path / "networks.py").write_text("def build(): ...\n")
    space = {
        "space": {"file": str(tmp_path / "networks.py")},
        "architectures": ["a"],
        "keys": {"clean": {}},
        "network": {},
    }

    def find_warnings(**fields: Any) -> list[str]:
        return [str(warning) for warning in find_sweep_warnings(make_sweep(**space, datasets={"cifar10": fields}))]

    (warning,) = find_warnings()
    assert "get the images of cifar10 normalised by mean [0.4" in warning
    assert "normalisation: {mean: [0, 0, 0], std: [1, 1, 1]}" in warning
    assert find_warnings(normalisation={"mean": [0, 0, 0], "std": [1, 1, 1]}) == []


def test_training_of_user_networks_warns_about_normalisation(tmp_path: Path, robust201: RunCommand) -> None:
    (tmp_path / "networks.py").write_text("def build(): ...\n")
    training = {
        "name": "own",
        "store": str(tmp_path / "store"),
        "space": {"file": str(tmp_path / "networks.py")},
        "architectures": ["a"],
        "datasets": {"cifar10": {}},
        "recipes": {
            "plain": {
                "epochs": 1,
                "batch_size": 8,
                "learning_rate": 0.1,
                "weight_decay": 0.0,
                "schedule": {"cosine": {}},
            }
        },
    }
    path = tmp_path / "train.yaml"
    path.write_text(yaml.safe_dump(training))
    result = robust201("plan", path)
    assert result.code == 0, result.err
    assert "get the images of cifar10 normalised by mean [0.4" in result.err
    assert "`evaluate` and `compare` as --mean and --std" in result.err


def test_attack_without_strengths_gives_caution(tmp_path: Path) -> None:
    file = str(tmp_path / "mine.py")
    (caution,) = UserTaskParameters(file=file).cautions
    assert caution.field == "strengths"
    assert "with strength 0" in caution.problem
    assert UserTaskParameters(file=file, strengths=(1.0,)).cautions == ()
    assert UserTaskParameters(file=file, kind="measure", columns=("mean",)).cautions == ()
