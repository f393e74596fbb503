"""`robust201 evaluate`: evaluate a network from a user's Python file, and print or write a table."""

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from robust201.cli import console
from robust201.cli.monitoring import AsJson, print_json
from robust201.cli.options import TableFile
from robust201.cli.user_file import parse_function
from robust201.core.csv_files import write_csv
from robust201.core.errors import ArchitectureError, ConfigError, EvaluationError, RobustError, did_you_mean
from robust201.core.files import check_output_file, write_text
from robust201.core.memory import restore_gc_thresholds
from robust201.core.user_code import describe_failure

if TYPE_CHECKING:
    import torch
    from torch import nn

    from robust201.analysis.evaluation import Comparison, Evaluation
    from robust201.core.records import ImageSet, Normalisation
    from robust201.images import Resize

_IMAGENET_SIZE = 224
"""Default size of the crop with a resize rule, as in torchvision."""

DATA_HELP = "Images: a dataset such as cifar10, a .npz or Parquet file, or a folder with a subfolder per class."
DATA_OPTION = typer.Option(help=DATA_HELP)
NETWORK_ARGUMENT = typer.Argument(
    metavar="FILE:FUNCTION", help="A Python file and its function that returns the network."
)
WeightsFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="State_dict (safetensors or PyTorch). Default: the weights that the function sets."
    ),
]
WeightsFiles = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="FILE", help="State_dict (safetensors or PyTorch). Repeatable: one per network, in the same order."
    ),
]
KEYS_HELP = "Keys such as clean,pgd,autoattack, or a Python file with your own attack (docs/your-own.md)."
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY.NAME=VALUE",
        help="Parameter of a key. Repeatable: --set pgd.steps=10 --set pgd.rel_stepsize=0.25.",
    ),
]
Mean = Annotated[
    str | None,
    typer.Option(
        metavar="R,G,B",
        help="Channel means, subtracted from pixels in [0, 1]; for grey images one number, as in --mean 0 --std 1.",
    ),
]
Std = Annotated[
    str | None,
    typer.Option(metavar="R,G,B", help="Channel standard deviations."),
]
Images = Annotated[
    int | None, typer.Option("--images", metavar="N", help="Use a class-stratified subset of this many images.")
]
ResizeRule = Annotated[
    str | None,
    typer.Option(
        "--resize",
        metavar="N[,CROP][,FILTER]",
        help="Resize the shorter side to N pixels (torchvision: 256), then crop to CROP (224). FILTER: bilinear.",
    ),
]
ClassOrderName = Annotated[
    str | None,
    typer.Option(
        "--class-order",
        help="Number class folders in the order of their names as text (default) or as numbers (numeric).",
    ),
]
Seed = Annotated[int, typer.Option(metavar="N", help="Seed of the subset and of all random numbers.")]
BatchSize = Annotated[int, typer.Option(min=1, metavar="N", help="Maximum number of images per batch.")]
Device = Annotated[
    str, typer.Option(metavar="NAME", help="auto (a GPU if PyTorch can use one, else the CPU), cpu, cuda or cuda:N.")
]


def evaluate(
    network: Annotated[str, NETWORK_ARGUMENT],
    data: Annotated[str, DATA_OPTION],
    weights: WeightsFile = None,
    keys: Annotated[
        str,
        typer.Option(
            help=f"{KEYS_HELP} Or a preset: quick (200 images), or for an entry of a leaderboard robustbench-linf, "
            "robustbench-l2 or robustbench-corruptions."
        ),
    ] = "quick",
    settings: Settings = None,
    mean: Mean = None,
    std: Std = None,
    images: Images = None,
    resize: ResizeRule = None,
    class_order: ClassOrderName = None,
    seed: Seed = 0,
    batch_size: BatchSize = 250,
    device: Device = "auto",
    out: TableFile = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate your own network on clean, attacked and corrupted images. FILE is executed.

    The network takes pixels in [0, 1], or normalised pixels with --mean and --std, and returns logits.
    """
    from robust201.analysis.robustbench import LEADERBOARDS
    from robust201.api import evaluate as evaluate_model
    from robust201.api import parse_keys
    from robust201.tasks import PRESETS

    if out is not None:
        check_table_file(out)
    normalisation = read_normalisation(mean, std)
    parsed_keys = read_keys(keys, settings or []) or {}
    parse_keys(parsed_keys, "fused")  # before the user's file is executed
    # A leaderboard uses the first images, so all images are loaded in their order.
    n_loaded = None if keys in LEADERBOARDS else images
    image_set = load_data(
        data, resize=resize, normalisation=normalisation, class_order=class_order, count=n_loaded, seed=seed
    )
    module = build_module(network, weights)
    restore_gc_thresholds()
    with calling_user_code(network):
        frame = evaluate_model(
            module,
            image_set,
            None,
            parsed_keys,
            count=images,
            normalisation=normalisation,
            seed=seed,
            device=choose_device(device),
            batch_size=batch_size,
            progress=True,
        )
    if out is not None:
        write_table(out, frame)
    if keys in LEADERBOARDS:
        console.say(frame.summary)
        print_json(frame.model_info)
        return
    if as_json:
        _print_json(frame, with_summary=keys in PRESETS)
        return
    _show(frame, f"{network} on {console.format_count(len(frame.outcomes), 'image')} of {data}")
    if keys in PRESETS:
        typer.echo(frame.summary)


def _print_json(frame: "Evaluation", *, with_summary: bool) -> None:
    # JSON has no infinity or NaN: write null.
    finite_frame = frame.replace([math.inf, -math.inf], math.nan).astype(object)
    rows = finite_frame.where(finite_frame.notna(), None).to_dict("records")
    payload: dict[str, Any] = {"rows": rows}
    if with_summary:
        payload["summary"] = frame.summary.splitlines()
    print_json(payload)


@contextmanager
def calling_user_code(network: str) -> Iterator[None]:
    """Convert exceptions of a user's network into a one-line `EvaluationError`."""
    try:
        yield
    except RobustError:
        raise
    except (Exception, SystemExit) as error:
        raise EvaluationError(
            f"Evaluating failed for {network}: the network raised {describe_failure(error)}. "
            "Correct the network, or evaluate it with smaller batches (--batch-size)."
        ) from error


def check_table_file(out: Path) -> None:
    """Check that a table can be written to a file; its name must end in .csv or .tex."""
    check_output_file(out)
    if out.suffix not in {".csv", ".tex"}:
        raise ConfigError(
            f"Writing a table failed for {out}: the file name must end in .csv or .tex. Choose another name."
        )


def write_table(out: Path, table: "Evaluation | Comparison") -> None:
    """Write a table as CSV, or as LaTeX if the file's name ends in .tex."""
    if out.suffix == ".tex":
        write_text(out, table.latex)
    else:
        write_csv(out, table)


def read_keys(keys: str | None, settings: Sequence[str]) -> dict[str, dict[str, Any]] | None:
    """Parse comma-separated keys and their parameters for `robust201.api.parse_keys`; return None if `keys` is None."""
    from robust201.tasks.parameters import STRENGTH_FIELDS

    if keys is None and settings:
        raise ConfigError(
            f"Reading the command line failed for --set {settings[0]!r}: --set needs --keys. Add the key to --keys."
        )
    if keys is None:
        return None
    pairs = [_read_key(name.strip()) for name in keys.split(",") if name.strip()]
    fields_by_key = dict(pairs)
    if len(fields_by_key) < len(pairs):
        raise ConfigError(
            f"Reading the command line failed for {keys!r}: a key is listed more than once. List each key once."
        )
    assigned_names: set[str] = set()
    for setting in settings:
        key, dot, assignment = setting.partition(".")
        parameter, equals, value = assignment.partition("=")
        if not (key and dot and parameter and equals and value):
            raise ConfigError(
                f"Reading the command line failed for --set {setting!r}: it is not of the form KEY.PARAMETER=VALUE, "
                "such as pgd.epsilons=8/255. Correct the option."
            )
        if setting.partition("=")[0] in assigned_names:
            raise ConfigError(
                f"Reading the command line failed for --set {setting!r}: {key}.{parameter} is set more than once. Set "
                "it once; separate several values with commas."
            )
        assigned_names.add(setting.partition("=")[0])
        if key not in fields_by_key:
            raise ConfigError(
                f"Reading the command line failed for --set {setting!r}: {key} is not among --keys."
                f"{did_you_mean(key, fields_by_key)}"
            )
        parsed_value = _read_value(value, is_list=parameter in (*STRENGTH_FIELDS, *_LIST_FIELDS))
        group_name, dot, name = parameter.partition(".")
        fields = fields_by_key[key].setdefault(group_name, {}) if dot else fields_by_key[key]
        if not isinstance(fields, dict):
            raise ConfigError(
                f"Reading the command line failed for --set {setting!r}: {key}.{group_name} is not a group of "
                "parameters. Correct the option."
            )
        fields[name or parameter] = parsed_value
    for fields in fields_by_key.values():
        if "file" in fields:  # check the file of a custom task, and announce that it will be executed
            default_function = "measure" if fields.get("kind") == "measure" else "perturb"
            parse_function(f"{fields['file']}:{fields.get('function', default_function)}")
    return fields_by_key


_LIST_FIELDS = ("strengths", "columns")
"""Fields of a custom task whose values are lists."""


def _read_key(name: str) -> tuple[str, dict[str, Any]]:
    """Return a key and its fields; the key of FILE.py or FILE.py:FUNCTION is the name of the file without .py."""
    file, colon, function = name.partition(".py:")
    if colon:
        return Path(file).name, {"file": f"{file}.py", "function": function}
    return (Path(name).stem, {"file": name}) if name.endswith(".py") else (name, {})


def _read_value(text: str, *, is_list: bool) -> Any:
    """Parse a number, true or false; return other text unchanged. Commas separate the items of a list."""
    if is_list or "," in text:
        return [_read_value(item, is_list=False) for item in text.split(",")]
    try:
        return json.loads(text)
    except ValueError:
        return text.strip()


def read_normalisation(mean: str | None, std: str | None, *, option_prefix: str = "") -> "Normalisation | None":
    """Parse --mean and --std, or options with a prefix such as --judge-mean; return None if both are absent."""
    mean_option, std_option = (f"--{option_prefix}{name}" for name in ("mean", "std"))
    from robust201.core.records import Normalisation

    if mean is None and std is None:
        return None
    if mean is None or std is None:
        raise ConfigError(
            f"Reading the command line failed for {mean_option} and {std_option}: only one of them is set. Add the "
            "other."
        )
    normalisation = Normalisation(_read_numbers(mean_option, mean), _read_numbers(std_option, std))
    if (problem := normalisation.problem) is not None:
        raise ConfigError(f"Reading the command line failed for --{option_prefix}{problem.field}: {problem.text}")
    return normalisation


def _read_numbers(option: str, text: str) -> tuple[float, ...]:
    try:
        channel_values = tuple(map(float, text.split(",")))
    except ValueError:
        channel_values = ()
    if len(channel_values) not in {1, 3}:
        raise ConfigError(
            f"Reading the command line failed for {option}: expected three numbers such as 0.49,0.48,0.45, or one for "
            f"grey images, got {text!r}. Write one number per channel."
        )
    return channel_values


def read_resize(text: str | None) -> "tuple[int | None, Resize | None]":
    """Parse --resize, such as ``256``, ``342,299`` or ``256,224,bicubic``; return the image size and the resize rule.

    Without a rule, both are None, and images have the size of the first image.
    """
    from robust201.images import Resize

    if text is None:
        return None, None
    shorter_side, *others = (field.strip() for field in text.split(","))
    crop = others.pop(0) if others and others[0].isdecimal() else str(_IMAGENET_SIZE)
    if not shorter_side.isdecimal() or len(others) > 1:
        raise ConfigError(
            f"Reading the command line failed for --resize {text!r}: it is not of the form N[,CROP][,FILTER], such as "
            "256, 342,299 or 256,224,bicubic. Correct the option."
        )
    return int(crop), Resize(int(shorter_side), others[0] if others else Resize().resampling)


def load_data(
    data: str,
    *,
    resize: str | None = None,
    normalisation: "Normalisation | None" = None,
    class_order: str | None = None,
    count: int | None = None,
    seed: int = 0,
) -> "ImageSet":
    """Load the images of a file, a folder or a named dataset; `count` selects the same subset as `evaluate` does.

    Images of a file are grey if the normalisation has one channel.
    """
    from robust201.images import DATASETS, load_images
    from robust201.images.specs import UNKNOWN_COUNT, custom_dataset

    path = Path(data)
    image_size, rule = read_resize(resize)
    if data in DATASETS:
        for name, value in {"resize": resize, "class-order": class_order}.items():
            if value is not None:
                raise ConfigError(
                    f"Reading the command line failed for --{name}: it is only for files and folders, but {data} is a "
                    "dataset of the table. Remove the option."
                )
        return load_images(data, count=count, seed=seed)
    if not path.exists():
        raise ConfigError(
            f"Reading the command line failed for --data: expected a file, a folder or a dataset's name, got {data!r}."
            f"{did_you_mean(data, DATASETS)}"
        )
    # The number of classes comes from class folders or from the network; labels are checked against it later.
    spec = custom_dataset(
        path.stem,
        image_size=image_size or UNKNOWN_COUNT,
        channels=3 if normalisation is None else len(normalisation.mean),
        resize=rule,
        class_order=class_order,
    )
    return load_images(spec, path=path, count=count, seed=seed)


def choose_device(name: str) -> "torch.device":
    """Return the device of --device, and announce a GPU."""
    from robust201.models.device import available_device, describe_device, is_gpu

    device = available_device(name)
    if is_gpu(device):
        console.say(f"Computing on {device} ({describe_device(device)}).")
    return device


def build_module(network: str, weights: Path | None) -> "nn.Module":
    """Execute FILE:FUNCTION to build a network, and load the weights, if any."""
    from torch import nn

    from robust201.weights.loading import fill_network, read_weights
    from robust201.weights.published.base import wrapper_prefix

    tensors = None if weights is None else read_weights(weights, console.say)
    function = parse_function(network)
    build = function.load()
    try:
        module = build()
    except (Exception, SystemExit) as error:
        raise ArchitectureError(
            f"Building a network failed for {function.label}: expected a torch.nn.Module from a call without "
            f"arguments, got {describe_failure(error)}. Correct the function."
        ) from error
    if not isinstance(module, nn.Module):
        raise ArchitectureError(
            f"Building a network failed for {function.label}: expected a torch.nn.Module, got {type(module).__name__}. "
            "The function must return the network."
        )
    if tensors is not None:
        prefix = wrapper_prefix(module.state_dict())  # the function may return a wrapped network
        fill_network(module, {prefix + name: tensor for name, tensor in tensors.items()}, str(weights))
    return module


def _show(frame: "Evaluation", title: str) -> None:
    standard_columns = ("key", "strength", "accuracy", "low", "high", "confidence", "n_images", "seconds")
    measure_columns = [column for column in frame.columns if column not in standard_columns]
    columns = ("key", "strength", "accuracy", "95% interval", "confidence", *measure_columns)
    rows = []
    for row in frame.to_dict("records"):
        has_accuracy = not math.isnan(row["accuracy"])  # a measure has no accuracy
        accuracy_cells = (
            f"{row['accuracy']:.4f}",
            f"{row['low']:.4f} to {row['high']:.4f}",
            f"{row['confidence']:.4f}",
        )
        measure_cells = ("" if has_accuracy else f"{row[column]:.6g}" for column in measure_columns)
        rows.append(
            (row["key"], f"{row['strength']:g}", *(accuracy_cells if has_accuracy else ("", "", "")), *measure_cells)
        )
    console.show_table(title, columns, rows)
