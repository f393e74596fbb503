"""Commands that create images: fuse, import-images, robustify."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from robust201.cli import console
from robust201.cli.evaluate import build_module, read_normalisation
from robust201.cli.pictures import check_drawing, draw_blend_sheet
from robust201.core.errors import ConfigError
from robust201.core.host import MAX_THREADS
from robust201.core.records import MAX_CLASSES

if TYPE_CHECKING:
    from robust201.core.records import ImageSet, Normalisation, Split
    from robust201.models.classifier import Classifier

SplitText = Annotated[str, typer.Option("--split", help="Split of the dataset: test or train.")]


def read_split(text: str) -> "Split":
    """Parse --split."""
    from robust201.core.records import Split
    from robust201.export.written_file import parse_choice

    split: Split = parse_choice("split", text, get_args(Split))
    return split


def fuse(
    out: Annotated[Path, typer.Option("--out", help="Folder to write; created if absent.")],
    first: Annotated[str, typer.Option(help="First image dataset.")] = "mnist",
    second: Annotated[str, typer.Option(help="Second image dataset.")] = "cifar10",
    first_path: Annotated[Path | None, typer.Option("--first-data", help="Path of the first dataset's images.")] = None,
    second_path: Annotated[
        Path | None, typer.Option("--second-data", help="Path of the second dataset's images.")
    ] = None,
    label: Annotated[str, typer.Option(help="Dataset that provides the labels: first or second.")] = "first",
    alpha: Annotated[
        float, typer.Option(min=0, max=1, help="Weight of the first dataset's pixels, from 0 to 1.")
    ] = 0.5,
    seed: Annotated[int, typer.Option(help="Seed of the random pairing.")] = 0,
    split: SplitText = "test",
    sheet: Annotated[
        Path | None, typer.Option(help="Also draw the first blends and their sources into this PNG, SVG or PDF file.")
    ] = None,
) -> None:
    """Blend pairs of images from two datasets, to use the blends in a sweep."""
    from robust201.export.written_file import parse_choice
    from robust201.images import load_images
    from robust201.images.fusion import LabelFrom, write_fusion
    from robust201.images.image_folder import describe_folder

    if sheet is not None:
        check_drawing(sheet)
    chosen_split, label_source = read_split(split), parse_choice("label", label, get_args(LabelFrom))
    images = [
        load_images(name, path=path, split=chosen_split) for name, path in ((first, first_path), (second, second_path))
    ]
    write_fusion(out, images[0], images[1], split=chosen_split, alpha=alpha, label=label_source, seed=seed)
    if sheet is not None:
        draw_blend_sheet(out / f"{chosen_split}.npz", images, sheet)
    n_classes = images[0 if label_source == "first" else 1].n_classes
    typer.echo(describe_folder(out, n_classes, images[0].images.shape[-1]))


def import_images(
    source: Annotated[
        Path, typer.Argument(metavar="SOURCE", help="Folder with the published files CIFAR_ims and CIFAR_lab.")
    ],
    out: Annotated[Path, typer.Option("--out", help="Folder to write; created if absent.")],
    classes: Annotated[int, typer.Option(min=2, max=MAX_CLASSES, help="Number of classes.")] = 10,
    rounding: Annotated[
        str, typer.Option(help="Rounding to 8 bits: half-up, or down (like torchvision's ToPILImage).")
    ] = "half-up",
    split: SplitText = "train",
) -> None:
    """Convert the published robust-feature datasets (torch.save files) to images for sweeps and training."""
    from robust201.export.written_file import parse_choice
    from robust201.images.image_folder import Rounding, describe_folder
    from robust201.images.torch_images import import_torch_images

    chosen_rounding = parse_choice("rounding", rounding, get_args(Rounding))
    size = import_torch_images(source, out, n_classes=classes, split=read_split(split), rounding=chosen_rounding)
    typer.echo(describe_folder(out, classes, size))


def robustify(
    network: Annotated[
        str,
        typer.Argument(
            metavar="NETWORK", help="An architecture such as resnet50 or 13714, or your own network as FILE:FUNCTION."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", help="Folder to write; created if absent.")],
    dataset: Annotated[
        str, typer.Option(help="Dataset on which NETWORK was trained; its training images are the starting points.")
    ],
    path: Annotated[Path | None, typer.Option("--data", help="Path of the dataset's images.")] = None,
    store: Annotated[Path | None, typer.Option(help="Checkpoint store with the weights of NETWORK.")] = None,
    recipe: Annotated[str | None, typer.Option(help="With --store: name of the training recipe.")] = None,
    epochs: Annotated[int | None, typer.Option(help="With --store: training length in epochs.")] = None,
    weights_seed: Annotated[int | None, typer.Option("--weights-seed", help="With --store: training seed.")] = None,
    weights: Annotated[
        Path | None, typer.Option(help="Safetensors file with the weights of NETWORK, instead of --store.")
    ] = None,
    mean: Annotated[str | None, typer.Option(metavar="R,G,B", help="Channel means. Default: the dataset's.")] = None,
    std: Annotated[
        str | None, typer.Option(metavar="R,G,B", help="Channel standard deviations. Default: the dataset's.")
    ] = None,
    method: Annotated[
        str,
        typer.Option(
            help="representation (for robust features, if NETWORK is robust), random-target or next-target (both for "
            "non-robust features)."
        ),
    ] = "representation",
    steps: Annotated[
        int | None, typer.Option(help="Steps of gradient descent. Default: 1000, or 100 with a target method.")
    ] = None,
    step_size: Annotated[float | None, typer.Option(help="L2 length of a step. Default: 0.1.")] = None,
    epsilon: Annotated[
        float | None,
        typer.Option(help="With a target method: largest L2 distance from the starting image. Default: 0.5."),
    ] = None,
    count: Annotated[int | None, typer.Option(help="Use a class-stratified subset of this many images.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the subset and of all random numbers.")] = 0,
    batch_size: Annotated[int, typer.Option(help="Number of images per batch, and per intermediate file.")] = 100,
    threads: Annotated[
        int,
        typer.Option(min=1, max=MAX_THREADS, help="Number of CPU threads; rounding errors in the images depend on it."),
    ] = 1,
    device: Annotated[str, typer.Option(help="Device to compute on: cpu, cuda or cuda:N.")] = "cpu",
    judge: Annotated[
        Path | None,
        typer.Option(
            metavar="WEIGHTS",
            help="With --method representation: weights of an independent network trained on natural images, to report "
            "how often that network predicts the labels of the new images.",
        ),
    ] = None,
    judge_network: Annotated[
        str | None, typer.Option(help="Network of --judge: an architecture or FILE:FUNCTION. Default: NETWORK.")
    ] = None,
    judge_mean: Annotated[
        str | None, typer.Option(metavar="R,G,B", help="Channel means of --judge. Default: the dataset's.")
    ] = None,
    judge_std: Annotated[
        str | None,
        typer.Option(metavar="R,G,B", help="Channel standard deviations of --judge. Default: the dataset's."),
    ] = None,
) -> None:
    """Create training images that contain only the robust, or only the non-robust, features of a network."""
    from robust201.export.written_file import parse_choice
    from robust201.images import load_images, select
    from robust201.images.image_folder import describe_folder
    from robust201.models.arithmetic import configure_torch
    from robust201.training.robust_features import FeatureSettings, Method, write_feature_images

    settings = FeatureSettings.of(
        parse_choice("method", method, get_args(Method)),
        steps=steps,
        step_size=step_size,
        epsilon=epsilon,
        seed=seed,
        batch_size=batch_size,
    )
    normalisation = read_normalisation(mean, std)
    judge_normalisation = read_normalisation(judge_mean, judge_std, option_prefix="judge-")
    if judge is None and judge_normalisation is not None:
        raise ConfigError(
            "Reading the command line failed for --judge-mean and --judge-std: they need --judge. Add "
            "--judge, or remove them."
        )
    images = load_images(dataset, path=path, split="train")
    if count is not None:
        images = select(images, count=count, seed=seed)
    configure_torch(threads)
    classifier = _load_classifier(
        network, dataset, store, weights, device, normalisation, recipe=recipe, epochs=epochs, seed=weights_seed
    )
    with console.showing_progress("Creating images") as progress:
        write_feature_images(out, images, classifier, settings, network=_identify_network(network), progress=progress)
    if judge is not None:
        judge_classifier = _load_classifier(judge_network or network, dataset, None, judge, device, judge_normalisation)
        _check_labels(out, images, judge_classifier)
    elif settings.method == "representation":
        console.say(
            "The labels were not checked: whether another network recognises them depends on the robustness of "
            "NETWORK. To check them, set --judge to the weights of an independent network."
        )
    typer.echo(describe_folder(out, images.n_classes, images.images.shape[-1]))


def _check_labels(folder: Path, images: "ImageSet", judge: "Classifier") -> None:
    from robust201.training.label_check import TRUSTED_FRACTION, check_generated_labels

    label_check = check_generated_labels(folder, images, judge)
    console.say(
        f"The independent network predicts the intended label for {label_check.label_fraction:.0%} of the images, "
        f"and the label of the starting image for {label_check.start_label_fraction:.0%} (on {label_check.n_images:,} "
        "images whose two labels differ)."
    )
    if not label_check.recognises_labels:
        console.say(
            f"warning: these are not robust features: another network predicts the intended label for fewer than "
            f"{TRUSTED_FRACTION:.0%} of the images, because NETWORK is not robust enough. Train it with a larger "
            "epsilon or for longer."
        )


def _identify_network(network: str) -> dict[str, Any]:
    """Return a JSON object that identifies a network without its weights, whatever its path or spelling."""
    if ":" in network:
        from robust201.core.user_code import hash_file

        file, _, function = network.rpartition(":")
        return {"function": function, "file_sha256": hash_file(Path(file))}
    from robust201.spaces import find_architecture

    space, architecture = find_architecture(_parse_architecture(network))
    return {"space": space.name, "architecture": architecture}


def _parse_architecture(text: str) -> int | str:
    return int(text) if text.isdecimal() else text


def _load_classifier(
    network: str,
    dataset: str,
    store: Path | None,
    weights: Path | None,
    device: str,
    normalisation: "Normalisation | None",
    **training: Any,
) -> "Classifier":
    """Load a network; without `normalisation`, the dataset's normalisation is used."""
    from robust201.models.classifier import Classifier

    if ":" not in network:
        from robust201.api import load_model

        classifier = load_model(
            _parse_architecture(network), dataset, store, weights=weights, device=device, **training
        )
        if normalisation is None:
            return classifier
        return Classifier(classifier.network, normalisation, classifier.n_classes, device=classifier.device)
    from robust201.images import dataset as dataset_spec
    from robust201.models.user_module import available_device

    if store is not None:
        raise ConfigError(
            f"Loading a network failed for {network!r}: a checkpoint store has no weights of custom networks. Use "
            "--weights FILE instead of --store."
        )
    spec = dataset_spec(dataset)
    module, torch_device = build_module(network, weights), available_device(device)
    return Classifier(module, normalisation or spec.normalisation, spec.n_classes, device=torch_device)
