"""`robust201 evaluate`: evaluate a network from a user's Python file, and print or write a table."""

import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from robust201.cli import console
from robust201.cli.options import AsJson, TableFile, print_json
from robust201.core.errors import ConfigError, EvaluationError, RobustError, did_you_mean
from robust201.core.files import check_output_file, write_csv, write_text
from robust201.core.memory import restore_gc_thresholds
from robust201.core.user_code import UserFunction, describe_failure, parse_function

if TYPE_CHECKING:
    import pandas as pd
    import torch

    from robust201.analysis.comparison import Comparison
    from robust201.analysis.evaluation import Evaluation
    from robust201.analysis.named_networks import UserNetwork
    from robust201.analysis.ranking import Ranking
    from robust201.core.records import ImageSet
    from robust201.images import Resize

_IMAGENET_SIZE = 224
"""Default size of the crop with a resize rule, as in torchvision."""

DATA_HELP = "Images: a dataset such as cifar10, a .npz or Parquet file, or a folder with a subfolder per class."
DATA_OPTION = typer.Option(help=DATA_HELP)
NETWORK_HELP = (
    "FILE:FUNCTION, a Python file and its function that returns the network. Append ,weights=FILE for a state_dict, "
    "and ,mean=R,G,B,std=R,G,B (grey: one number each) if it takes normalised pixels."
)
KEYS_HELP = "Keys such as clean,pgd:8/255,fog:3, or FILE.py with your own attack."
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY.NAME=VALUE",
        help="Parameter of a key, such as pgd.steps=10. Repeatable.",
    ),
]
Images = Annotated[
    int | None, typer.Option("--images", metavar="N", help="Number of images, a class-stratified subset.")
]
ResizeRule = Annotated[
    str | None,
    typer.Option(
        "--resize",
        metavar="N[,CROP][,FILTER]",
        help="Resize the shorter side to N pixels (torchvision: 256), then crop. Defaults: CROP 224, FILTER bilinear.",
    ),
]
Seed = Annotated[int, typer.Option(metavar="N", help="Seed of the subset and of all random numbers.")]
Device = Annotated[
    str, typer.Option(metavar="NAME", help="auto (a GPU if PyTorch can use one, else the CPU), cpu, cuda or cuda:N.")
]


def evaluate(
    network: Annotated[str, typer.Argument(metavar="NETWORK", help=f"Your network: {NETWORK_HELP}")],
    data: Annotated[str, DATA_OPTION],
    keys: Annotated[
        str,
        typer.Option(
            help=f"{KEYS_HELP} Or a preset: quick (200 images), robustbench-linf, robustbench-l2, "
            "robustbench-corruptions."
        ),
    ] = "quick",
    settings: Settings = None,
    images: Images = None,
    resize: ResizeRule = None,
    seed: Seed = 0,
    device: Device = "auto",
    save: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Save each finished key. A repeated command computes only what is missing."
        ),
    ] = None,
    out: TableFile = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate your network on clean, attacked and corrupted images.

    FILE is executed. The network takes pixels in [0, 1] and returns logits.
    """
    from robust201.analysis.named_networks import parse_user_network
    from robust201.analysis.requested_keys import parse_keys
    from robust201.analysis.robustbench import LEADERBOARDS
    from robust201.api import evaluate as evaluate_model
    from robust201.tasks import PRESETS

    if out is not None:
        check_table_file(out)
    user_network = parse_user_network(network)
    normalisation = user_network.normalisation
    parsed_keys = read_keys(keys, settings or [])
    parse_keys(parsed_keys, "fused")  # before the user's file is executed
    # A leaderboard uses the first images, so all images are loaded in their order.
    n_loaded = None if keys in LEADERBOARDS else images
    image_set = load_data(data, resize=resize, channels=count_channels([user_network]), count=n_loaded, seed=seed)
    module = user_network._replace(report=console.say).build()
    restore_gc_thresholds()
    with calling_user_code(network):
        result = evaluate_model(
            module,
            image_set,
            None,
            parsed_keys,
            save=save,
            count=images,
            normalisation=normalisation,
            seed=seed,
            device=choose_device(device),
            progress=True,
        )
    if out is not None:
        write_table(out, result)
    if keys in LEADERBOARDS:
        console.say(result.summary)
        print_json(result.model_info)
    elif as_json:
        summary = {"summary": result.summary.splitlines()} if keys in PRESETS else {}
        print_json({"rows": to_json_rows(result.table), "warnings": console.printed_warnings} | summary)
    else:
        typer.echo(result)
        if keys in PRESETS:
            typer.echo(result.summary)


def to_json_rows(table: "pd.DataFrame") -> list[dict[Any, Any]]:
    """Return the rows of a table as JSON objects; JSON has no infinity or NaN, so they become null."""
    finite_table = table.replace([math.inf, -math.inf], math.nan).astype(object)
    return [dict(row) for row in finite_table.where(finite_table.notna(), None).to_dict("records")]


def count_channels(networks: "Iterable[UserNetwork]") -> int:
    """Return the number of channels of the images: 1 if a normalisation has one number, else 3."""
    return min(
        (len(network.normalisation.mean) for network in networks if network.normalisation is not None), default=3
    )


@contextmanager
def calling_user_code(network: str) -> Iterator[None]:
    """Convert exceptions of a user's network into a one-line `EvaluationError`."""
    try:
        yield
    except RobustError:
        raise
    except (Exception, SystemExit, GeneratorExit) as error:
        raise EvaluationError(
            f"Evaluating failed for {network}: the network raised {describe_failure(error)}. Correct the network."
        ) from error


def check_table_file(out: Path) -> None:
    """Check that a table can be written to a file; its name must end in .csv or .tex."""
    check_output_file(out)
    if out.suffix not in {".csv", ".tex"}:
        raise ConfigError(
            f"Writing a table failed for {out}: the file name must end in .csv or .tex. Choose another name; write "
            "JSON, such as a leaderboard entry, with --json > FILE."
        )


def write_table(out: Path, table: "Evaluation | Comparison | Ranking") -> None:
    """Write a table as CSV, or as LaTeX if the file's name ends in .tex."""
    if out.suffix == ".tex":
        write_text(out, table.latex())
    else:
        write_csv(out, table.table)
    console.say(f"Wrote {out}.")


def read_keys(keys: str, settings: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Parse comma-separated keys and their parameters (--set) for `parse_keys`.

    --set accepts either name of a group that contains a single key: `autoattack` or `aa_standard`.
    """
    from robust201.analysis.requested_keys import find_preset, pair_with_fields
    from robust201.tasks import KEY_GROUPS, PRESETS, expand_keys
    from robust201.tasks.parameters import STRENGTH_FIELDS

    pairs = pair_with_fields([_read_key(name.strip()) for name in keys.split(",") if name.strip()])
    fields_by_key = dict(pairs)
    if len(fields_by_key) < len(pairs):
        raise ConfigError(
            f"Reading the command line failed for {keys!r}: a key is listed more than once. List each key once."
        )
    if settings and (preset := find_preset(fields_by_key)) is not None:
        raise ConfigError(
            f"Reading the command line failed for --set {settings[0]!r}: the parameters of the preset {preset} are "
            f"fixed. List its keys instead: --keys {','.join(PRESETS[preset])}"
        )
    groups_first = sorted(fields_by_key, key=lambda name: name not in KEY_GROUPS)
    name_by_keys = {expand_keys([name]): name for name in groups_first}  # a listed key replaces its group
    for setting in settings:
        match = _SETTING_PATTERN.fullmatch(setting)
        key = None if match is None else name_by_keys.get(expand_keys([match["key"]]))
        if match is None or key is None:
            raise ConfigError(
                f"Reading the command line failed for --set {setting!r}: expected KEY.PARAMETER=VALUE with one of "
                f"--keys ({', '.join(fields_by_key)}), such as pgd.epsilons=8/255. Correct the option."
            )
        fields, name = fields_by_key[key], match["name"]
        if match["prefix"]:
            fields = fields.setdefault("parameters", {})
        if not isinstance(fields, dict) or name in fields:
            raise ConfigError(
                f"Reading the command line failed for --set {setting!r}: it is set more than once. Set it once."
            )
        is_list = not match["prefix"] and name in (*STRENGTH_FIELDS, "strengths", "columns")
        fields[name] = _read_value(match["value"], is_list=is_list)
    for fields in fields_by_key.values():
        if "file" in fields:  # check the file of a custom task, and announce that it will be executed
            default_function = "measure" if fields.get("kind") == "measure" else "perturb"
            announce_function(f"{fields['file']}:{fields.get('function', default_function)}")
    return fields_by_key


_SETTING_PATTERN = re.compile(r"(?P<key>[^.=]+)\.(?P<prefix>parameters\.)?(?P<name>[^.=]+)=(?P<value>.+)", re.DOTALL)


def announce_function(text: str) -> UserFunction:
    """Parse FILE:FUNCTION, and announce that the file will be executed."""
    function = parse_function(text)
    console.say(f"Executing {function.path} (SHA-256 {function.sha256[:16]}…)")
    return function


def _read_key(name: str) -> str | dict[str, Any]:
    """Return a key unchanged; for FILE.py or FILE.py:FUNCTION, return {name without .py: fields of the task}."""
    file, colon, function = name.partition(".py:")
    if colon and not function.isidentifier():
        raise ConfigError(
            f"Reading the command line failed for {name!r}: expected {file}.py:FUNCTION. Set strengths with --set, "
            f"such as --set {Path(file).name}.strengths=8/255."
        )
    if colon:
        return {Path(file).name: {"file": f"{file}.py", "function": function}}
    return {Path(name).stem: {"file": name}} if name.endswith(".py") else name


def _read_value(text: str, *, is_list: bool) -> Any:
    """Parse a number, true or false; return other text unchanged. Commas separate the items of a list."""
    if is_list or "," in text:
        return [_read_value(item, is_list=False) for item in text.split(",")]
    try:
        return json.loads(text)
    except ValueError:
        return text.strip()


def read_resize(text: str | None) -> "tuple[int | None, Resize | None]":
    """Parse --resize, such as ``256``, ``342,299`` or ``256,224,bicubic``; return the image size and the resize rule.

    If `text` is None, both are None, and images have the size of the first image.
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
    data: str, *, resize: str | None = None, channels: int = 3, count: int | None = None, seed: int = 0
) -> "ImageSet":
    """Load the images of a file, a folder or a named dataset; `count` selects the same subset as `evaluate` does."""
    from robust201.images import DATASETS, load_images
    from robust201.images.specs import UNKNOWN_COUNT, custom_dataset

    path = Path(data)
    if data in DATASETS and resize is None:
        return load_images(data, count=count, seed=seed)
    if data in DATASETS or not path.exists():
        raise ConfigError(
            f"Reading the command line failed for --data: expected a file, a folder or (without --resize) a dataset's "
            f"name, got {data!r}.{did_you_mean(data, DATASETS)}"
        )
    image_size, rule = read_resize(resize)
    # The number of classes comes from class folders or from the network; labels are checked against it later.
    spec = custom_dataset(path.stem, image_size=image_size or UNKNOWN_COUNT, channels=channels, resize=rule)
    return load_images(spec, path=path, count=count, seed=seed)


def choose_device(name: str) -> "torch.device":
    """Return the device of --device, and announce a GPU."""
    from robust201.networks.device import available_device, describe_device, is_gpu

    device = available_device(name)
    if is_gpu(device):
        console.say(f"Computing on {device} ({describe_device(device)}).")
    return device
