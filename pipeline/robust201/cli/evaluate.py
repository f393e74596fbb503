"""`robust201 evaluate`: evaluate a user's network, built by a Python file; print a table, or write a CSV."""

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from robust201.cli import console
from robust201.cli.monitoring import AsJson, print_json
from robust201.cli.user_file import parse_function
from robust201.core.csv_files import write_csv
from robust201.core.errors import ArchitectureError, ConfigError, EvaluationError, RobustError, closest
from robust201.core.files import check_output_file, write_text
from robust201.core.memory import collect_as_usual
from robust201.core.user_code import describe_failure

if TYPE_CHECKING:
    from torch import nn

    from robust201.analysis.evaluation import Comparison, Evaluation
    from robust201.core.records import ImageSet, Normalisation
    from robust201.images import Resize

_IMAGENET_SIZE = 224
"""Image size with a resize rule, unless another is given: that of torchvision's networks."""

DATA = typer.Option(
    help="A .npz or Parquet file of images, a folder with one, a folder of JPEG or PNG files per class, or a dataset's "
    "name."
)
KEYS_HELP = (
    "Keys separated by commas, such as clean,pgd,autoattack,corruptions; my_attack.py for a task of your own, whose "
    "fields --set gives, as in --set my_attack.norm=Linf --set my_attack.strengths=8 (docs/your-own.md)."
)
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY.PARAMETER=VALUE",
        help="Set a parameter of a key, such as pgd.epsilons_255=1,8. Repeatable: --set pgd.steps=10 "
        "--set pgd.rel_stepsize=0.25.",
    ),
]
Mean = Annotated[
    str | None,
    typer.Option(metavar="R,G,B", help="Channel means, subtracted from pixels in [0, 1]; one for grey images."),
]
Std = Annotated[
    str | None, typer.Option(metavar="R,G,B", help="Channel standard deviations, by which the result is divided.")
]
Count = Annotated[int | None, typer.Option(help="Use a class-stratified subset of this many images.")]
ImageSize = Annotated[
    int | None, typer.Option(min=1, help="Height and width of the images in a file. [default: those of the first]")
]
ResizeRule = Annotated[
    str | None,
    typer.Option(
        "--resize",
        metavar="N[,FILTER]",
        help="Resize the shorter side of JPEG and PNG files to N pixels, then cut out the middle --image-size (224 if "
        "absent). 256 is torchvision's rule for ImageNet. FILTER is bilinear if absent.",
    ),
]
Channels = Annotated[int, typer.Option(min=1, max=3, help="Channels of the images in a file: 3, or 1 for grey ones.")]
Seed = Annotated[int, typer.Option(help="Seed of the subset and of every draw.")]
Engine = Annotated[str, typer.Option(help="fused, or reference for the libraries themselves.")]
BatchSize = Annotated[int, typer.Option(min=1, help="Maximum number of images per batch.")]
Randomised = Annotated[
    bool, typer.Option("--randomised", help="The network's outputs are random: autoattack is its version for these.")
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Show no progress.")]
Device = Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")]


def evaluate(
    network: Annotated[
        str, typer.Argument(metavar="FILE:FUNCTION", help="A Python file, and its function that returns the network.")
    ],
    data: Annotated[str | None, DATA] = None,
    weights: Annotated[
        Path | None,
        typer.Option(
            help="A file of its state_dict, safetensors or PyTorch; if absent, the weights that the function sets."
        ),
    ] = None,
    keys: Annotated[
        str | None,
        typer.Option(
            help=f"{KEYS_HELP} If absent, a first look of about a minute for a small network: clean, FGSM, PGD, "
            "AutoAttack and three corruptions on as many images as the time allows."
        ),
    ] = None,
    benchmark: Annotated[
        str | None,
        typer.Option(
            help="Instead of --keys, the protocol of a RobustBench leaderboard on CIFAR-10: robustbench-linf, "
            "robustbench-l2 or robustbench-corruptions. Prints its JSON row; --count takes the first images."
        ),
    ] = None,
    epsilon: Annotated[
        str | None, typer.Option(help="Epsilon of a first look (without --keys), in units of pixels. [default: 8/255]")
    ] = None,
    settings: Settings = None,
    mean: Mean = None,
    std: Std = None,
    count: Count = None,
    image_size: ImageSize = None,
    resize: ResizeRule = None,
    channels: Channels = 3,
    seed: Seed = 0,
    engine: Engine = "fused",
    batch_size: BatchSize = 250,
    device: Device = "cpu",
    randomised: Randomised = False,
    worst_case: Annotated[
        bool,
        typer.Option(
            "--worst-case", help="Also print how many images are right under every key and strength, with its interval."
        ),
    ] = False,
    quiet: Quiet = False,
    out: Annotated[
        Path | None, typer.Option("--out", help="Also write the table to this file: CSV, or LaTeX (.tex).")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate your own network on clean, attacked and corrupted images. FILE is executed.

    The network takes pixels in [0, 1], unless --mean and --std are given, and returns logits.
    """
    from robust201.analysis.robustbench import DATASET, find_benchmark
    from robust201.api import evaluate as evaluate_model
    from robust201.api import parse_keys

    if out is not None:
        check_table_file(out)
    normalisation = read_normalisation(mean, std)
    chosen = read_keys(keys, settings or [])
    if chosen is not None:
        parse_keys(chosen, engine, randomised=randomised)  # before the user's file is executed
    if benchmark is not None:
        find_benchmark(benchmark)
    if data is None and benchmark is None:
        raise ConfigError("Reading the command line failed for --data: it is missing. Name images to evaluate on.")
    data = data or DATASET
    # A benchmark takes the first images, so it needs all in their order.
    n_loaded = count if benchmark is None else None
    images = load_data(data, image_size=image_size, resize=resize, channels=channels, count=n_loaded, seed=seed)
    module = build_module(network, weights)
    collect_as_usual()
    with calling_user_code(network):
        frame = evaluate_model(
            module,
            images,
            None,
            chosen,
            benchmark=benchmark,
            epsilon=epsilon,
            count=count,
            normalisation=normalisation,
            seed=seed,
            engine=engine,
            device=device,
            batch_size=batch_size,
            randomised=randomised,
            progress=not quiet,
        )
    if out is not None:
        write_table(out, frame)
    if benchmark is not None:
        console.say(frame.summary)
        print_json(frame.model_info)
        return
    if as_json:
        _print_json(frame, with_summary=chosen is None, worst_case=worst_case)
        return
    _show(frame, f"{network} on {console.show_count(len(frame.outcomes), 'image')} of {data}")
    if chosen is None:
        typer.echo(frame.summary)
    if worst_case:
        typer.echo(frame.worst_case().summary)


def _print_json(frame: "Evaluation", *, with_summary: bool, worst_case: bool) -> None:
    plain = frame.replace([math.inf, -math.inf], math.nan).astype(object)  # JSON has neither infinity nor NaN: null
    rows = plain.where(plain.notna(), None).to_dict("records")
    payload: dict[str, Any] = {"rows": rows}
    if with_summary:
        payload["summary"] = frame.summary.splitlines()
    if worst_case:
        payload["worst_case"] = frame.worst_case().summary.splitlines()
    print_json(payload)


@contextmanager
def calling_user_code(network: str) -> Iterator[None]:
    """Report what a user's network raises as an `EvaluationError` in one line."""
    try:
        yield
    except RobustError:
        raise
    except (Exception, SystemExit) as error:
        raise EvaluationError(
            f"Evaluating failed for {network}: expected logits of every batch, got {describe_failure(error)}. "
            "Correct the network, or evaluate it with smaller batches (--batch-size)."
        ) from error


def check_table_file(out: Path) -> None:
    """Check that a table can be written to a file; a ConfigError if its name ends in neither .csv nor .tex."""
    check_output_file(out)
    if out.suffix not in {".csv", ".tex"}:
        raise ConfigError(
            f"Writing a table failed for {out}: expected a name that ends in .csv or .tex, got {out.suffix or 'none'}. "
            "Rename it."
        )


def write_table(out: Path, table: "Evaluation | Comparison") -> None:
    """Write a table as CSV, or as LaTeX where the file's name ends in .tex."""
    if out.suffix == ".tex":
        write_text(out, table.latex)
    else:
        write_csv(out, table)


def read_keys(keys: str | None, settings: Sequence[str]) -> dict[str, dict[str, Any]] | None:
    """Parse comma-separated keys and their parameters, which `robust201.api.parse_keys` checks; None without keys."""
    from robust201.tasks.parameters import STRENGTH_FIELDS

    if keys is None and settings:
        raise ConfigError(
            f"Reading the command line failed for --set {settings[0]!r}: a first look has no parameters. Name the keys "
            "with --keys."
        )
    if keys is None:
        return None
    chosen = dict(_read_key(name.strip()) for name in keys.split(",") if name.strip())
    for setting in settings:
        key, dot, rest = setting.partition(".")
        parameter, equals, value = rest.partition("=")
        if not (key and dot and parameter and equals and value):
            raise ConfigError(
                f"Reading the command line failed for --set {setting!r}: expected KEY.PARAMETER=VALUE, such as "
                "pgd.epsilons_255=8, got another form. Correct it."
            )
        if key not in chosen:
            raise ConfigError(
                f"Reading the command line failed for --set {setting!r}: expected one of the keys of --keys, got "
                f"{key!r}.{closest(key, chosen)}"
            )
        read = _read_value(value, is_list=parameter in (*STRENGTH_FIELDS, *_LISTS))
        group, dot, name = parameter.partition(".")
        fields = chosen[key].setdefault(group, {}) if dot else chosen[key]
        if not isinstance(fields, dict):
            raise ConfigError(
                f"Reading the command line failed for --set {setting!r}: {key}.{group} has no parameters of its own. "
                "Correct it."
            )
        fields[name or parameter] = read
    for fields in chosen.values():
        if "file" in fields:  # announces that it is executed
            usual = "measure" if fields.get("kind") == "measure" else "perturb"
            parse_function(f"{fields['file']}:{fields.get('function', usual)}")
    return chosen


_LISTS = ("strengths", "columns")
"""Fields of a task of the user's own that are lists."""


def _read_key(name: str) -> tuple[str, dict[str, Any]]:
    """Read a key, or FILE.py or FILE.py:FUNCTION for a task of the user's own, whose key is the file's name."""
    file, colon, function = name.partition(".py:")
    if colon:
        return Path(file).name, {"file": f"{file}.py", "function": function}
    return (Path(name).stem, {"file": name}) if name.endswith(".py") else (name, {})


def _read_value(text: str, *, is_list: bool) -> Any:
    """Read a number, true or false, or else text; several between commas."""
    if is_list or "," in text:
        return [_read_value(piece, is_list=False) for piece in text.split(",")]
    try:
        return json.loads(text)
    except ValueError:
        return text.strip()


def read_normalisation(mean: str | None, std: str | None) -> "Normalisation | None":
    """Read --mean and --std; None where neither is given, ConfigError where one is missing or wrong."""
    from robust201.core.records import Normalisation

    if mean is None and std is None:
        return None
    if mean is None or std is None:
        raise ConfigError(
            "Reading the command line failed for --mean and --std: expected both, got one of them. Give the other too."
        )
    normalisation = Normalisation(_read_numbers("--mean", mean), _read_numbers("--std", std))
    if (problem := normalisation.problem) is not None:
        raise ConfigError(f"Reading the command line failed for --{problem.field}: {problem.text}")
    return normalisation


def _read_numbers(option: str, text: str) -> tuple[float, ...]:
    try:
        numbers = tuple(map(float, text.split(",")))
    except ValueError:
        numbers = ()
    if len(numbers) not in {1, 3}:
        raise ConfigError(
            f"Reading the command line failed for {option}: expected three numbers such as 0.49,0.48,0.45, or one for "
            f"grey images, got {text!r}. Give one for each channel."
        )
    return numbers


def read_resize(text: str | None) -> "Resize | None":
    """Parse the resize rule ``256`` or ``256,bicubic``."""
    from robust201.images import Resize

    if text is None:
        return None
    side, _, resampling = (part.strip() for part in text.partition(","))
    if not side.isdecimal():
        raise ConfigError(
            f"Reading the command line failed for --resize {text!r}: expected a number of pixels and perhaps a filter, "
            "such as 256 or 256,bicubic. Correct it."
        )
    return Resize(int(side), resampling or Resize().resampling)


def choose_size(image_size: int | None, resize: "Resize | None") -> int | None:
    """Return the image size of a resize rule where none is given; None takes that of the first image."""
    return _IMAGENET_SIZE if image_size is None and resize is not None else image_size


def load_data(
    data: str,
    *,
    image_size: int | None = None,
    resize: str | None = None,
    channels: int = 3,
    count: int | None = None,
    seed: int = 0,
) -> "ImageSet":
    """Load the images of a file, a folder or a dataset's name: all, or the subset of `evaluate`."""
    from robust201.images import DATASETS, load_images
    from robust201.images.specs import UNKNOWN_COUNT, own_dataset

    path, rule = Path(data), read_resize(resize)
    if data in DATASETS:
        images = load_images(data, count=count, seed=seed)
    elif path.exists():
        # The number of classes comes from class folders or the network, which labels are compared with later.
        size = choose_size(image_size, rule) or UNKNOWN_COUNT
        spec = own_dataset(path.stem, image_size=size, channels=channels, resize=rule)
        images = load_images(spec, path=path, count=count, seed=seed)
    else:
        raise ConfigError(
            f"Reading the command line failed for --data: expected a file, a folder or a dataset's name, got {data!r}."
            f"{closest(data, DATASETS)}"
        )
    return images


def build_module(network: str, weights: Path | None) -> "nn.Module":
    """Build the network of FILE:FUNCTION, which is executed, with the weights of a file if one is given."""
    from torch import nn

    from robust201.weights.loading import fill_network, read_weights
    from robust201.weights.published.base import wrapper_prefix

    tensors = None if weights is None else read_weights(weights, console.say)
    function = parse_function(network)
    build = function.load()
    try:
        built = build()
    except (Exception, SystemExit) as error:
        raise ArchitectureError(
            f"Building a network failed for {function.label}: expected a torch.nn.Module from a call without "
            f"arguments, got {describe_failure(error)}. Correct the function."
        ) from error
    if not isinstance(built, nn.Module):
        raise ArchitectureError(
            f"Building a network failed for {function.label}: expected a torch.nn.Module, got {type(built).__name__}. "
            "Let the function return the network."
        )
    if tensors is not None:
        prefix = wrapper_prefix(built.state_dict())  # the function may return a wrapped network
        fill_network(built, {prefix + name: tensor for name, tensor in tensors.items()}, str(weights))
    return built


def _show(frame: "Evaluation", title: str) -> None:
    answers_and_costs = ("key", "strength", "accuracy", "low", "high", "confidence", "n_images", "seconds")
    measured = [column for column in frame.columns if column not in answers_and_costs]
    columns = ("key", "strength", "accuracy", "95% interval", "confidence", *measured)
    rows = []
    for row in frame.to_dict("records"):
        has_answers = row["accuracy"] == row["accuracy"]  # NaN, of a measure, differs from itself
        answers = (f"{row['accuracy']:.4f}", f"{row['low']:.4f} to {row['high']:.4f}", f"{row['confidence']:.4f}")
        numbers = ("" if has_answers else f"{row[column]:.6g}" for column in measured)
        rows.append((row["key"], f"{row['strength']:g}", *(answers if has_answers else ("", "", "")), *numbers))
    console.show_table(title, columns, rows)
