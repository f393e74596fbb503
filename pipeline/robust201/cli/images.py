"""The verbs that make images: fuse, import-images, robustify."""

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
    from robust201.core.records import ImageSet, Split
    from robust201.models.classifier import Classifier

SplitText = Annotated[str, typer.Option("--split", help="test or train.")]


def read_split(text: str) -> "Split":
    """Read the name of a split; a ConfigError refuses others."""
    from robust201.core.records import Split
    from robust201.export.written_file import parse_choice

    split: Split = parse_choice("split", text, get_args(Split))
    return split


def fuse(
    out: Annotated[Path, typer.Option("--out", help="Folder to write; created if absent.")],
    first: Annotated[str, typer.Option(help="First dataset.")] = "mnist",
    second: Annotated[str, typer.Option(help="Second dataset.")] = "cifar10",
    first_path: Annotated[Path | None, typer.Option("--first-data", help="Path of its images.")] = None,
    second_path: Annotated[Path | None, typer.Option("--second-data", help="Path of its images.")] = None,
    label: Annotated[str, typer.Option(help="Dataset that gives the labels: first or second.")] = "first",
    alpha: Annotated[float, typer.Option(min=0, max=1, help="Weight of the first dataset's pixels, 0 to 1.")] = 0.5,
    seed: Annotated[int, typer.Option(help="Seed of the pairing.")] = 0,
    split: SplitText = "test",
    sheet: Annotated[
        Path | None, typer.Option(help="Also draw the first blends below their sources: a PNG, SVG or PDF file.")
    ] = None,
) -> None:
    """Blend the images of two datasets in fixed pairs, as test images of a sweep."""
    from robust201.export.written_file import parse_choice
    from robust201.images import load_images
    from robust201.images.fusion import LabelFrom, write_fusion
    from robust201.images.image_folder import describe_folder

    if sheet is not None:
        check_drawing(sheet)
    chosen, labelled = read_split(split), parse_choice("label", label, get_args(LabelFrom))
    images = [load_images(name, path=path, split=chosen) for name, path in ((first, first_path), (second, second_path))]
    write_fusion(out, images[0], images[1], split=chosen, alpha=alpha, label=labelled, seed=seed)
    if sheet is not None:
        draw_blend_sheet(out / f"{chosen}.npz", images, sheet)
    n_classes = images[0 if labelled == "first" else 1].n_classes
    typer.echo(describe_folder(out, n_classes, images[0].images.shape[-1]))


def import_images(
    source: Annotated[
        Path, typer.Argument(metavar="SOURCE", help="Folder of the published files CIFAR_ims and CIFAR_lab.")
    ],
    out: Annotated[Path, typer.Option("--out", help="Folder to write; created if absent.")],
    classes: Annotated[int, typer.Option(min=2, max=MAX_CLASSES, help="Number of classes.")] = 10,
    rounding: Annotated[
        str, typer.Option(help="Rounding to 8 bits: half-up, or down as torchvision's ToPILImage.")
    ] = "half-up",
    split: SplitText = "train",
) -> None:
    """Convert published datasets of robust features (torch.save) to images for sweeps and trainings."""
    from robust201.export.written_file import parse_choice
    from robust201.images.image_folder import Rounding, describe_folder
    from robust201.images.torch_images import import_torch_images

    chosen = parse_choice("rounding", rounding, get_args(Rounding))
    size = import_torch_images(source, out, n_classes=classes, split=read_split(split), rounding=chosen)
    typer.echo(describe_folder(out, classes, size))


def robustify(
    network: Annotated[
        str,
        typer.Argument(
            metavar="NETWORK", help="An architecture, such as resnet50 or 13714, or your own FILE:FUNCTION."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", help="Folder to write; created if absent.")],
    dataset: Annotated[
        str, typer.Option(help="Dataset on which NETWORK was trained, and whose training images are used.")
    ],
    path: Annotated[Path | None, typer.Option("--data", help="Path of its images.")] = None,
    store: Annotated[Path | None, typer.Option(help="Checkpoint store that holds the weights of NETWORK.")] = None,
    recipe: Annotated[str | None, typer.Option(help="Name of the training in the store.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Length of that training.")] = None,
    weights_seed: Annotated[int | None, typer.Option("--weights-seed", help="Seed of that training.")] = None,
    weights: Annotated[Path | None, typer.Option(help="A safetensors file of weights, instead of a store.")] = None,
    mean: Annotated[
        str | None, typer.Option(metavar="R,G,B", help="Channel means, if not those of the dataset.")
    ] = None,
    std: Annotated[
        str | None, typer.Option(metavar="R,G,B", help="Channel standard deviations, if not those of the dataset.")
    ] = None,
    method: Annotated[
        str,
        typer.Option(
            help="representation (robust features, if NETWORK is robust), or random-target or next-target (non-robust "
            "features)."
        ),
    ] = "representation",
    steps: Annotated[
        int | None, typer.Option(help="Steps of gradient descent; 1000 by default, 100 for methods with a target.")
    ] = None,
    step_size: Annotated[float | None, typer.Option(help="L2 length of a step; 0.1 by default.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="L2 radius of methods with a target; 0.5 by default.")] = None,
    count: Annotated[int | None, typer.Option(help="Use a class-stratified subset of this many images.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the subset and of all random draws.")] = 0,
    batch_size: Annotated[int, typer.Option(help="Images per pass, and per intermediate file.")] = 100,
    threads: Annotated[
        int, typer.Option(min=1, max=MAX_THREADS, help="CPU threads; the last bits of the images depend on them.")
    ] = 1,
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")] = "cpu",
    judge: Annotated[
        Path | None,
        typer.Option(
            metavar="WEIGHTS",
            help="Weights of another network, trained on natural images: reports whether it reads the labels of the "
            "images made by --method representation.",
        ),
    ] = None,
    judge_network: Annotated[
        str | None, typer.Option(help="Architecture of --judge, if not NETWORK; or FILE:FUNCTION.")
    ] = None,
) -> None:
    """Make training images with only the robust, or only the non-robust, features that a network uses."""
    from robust201.export.written_file import parse_choice
    from robust201.images import load_images, select
    from robust201.images.image_folder import describe_folder
    from robust201.models.arithmetic import configure_torch
    from robust201.models.classifier import Classifier
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
    images = load_images(dataset, path=path, split="train")
    if count is not None:
        images = select(images, count=count, seed=seed)
    configure_torch(threads)
    classifier = _load_classifier(
        network, dataset, store, weights, device, recipe=recipe, epochs=epochs, seed=weights_seed
    )
    if normalisation is not None:
        classifier = Classifier(classifier.network, normalisation, images.n_classes, device=classifier.device)
    with console.counting("Making images") as progress:
        write_feature_images(out, images, classifier, settings, network=_identify_network(network), progress=progress)
    if judge is not None:
        _check_labels(out, images, _load_classifier(judge_network or network, dataset, None, judge, device))
    elif settings.method == "representation":
        console.say(
            "Not checked: whether the images carry their labels depends on how robust the network is. Give the weights "
            "of an independent network by --judge."
        )
    typer.echo(describe_folder(out, images.n_classes, images.images.shape[-1]))


def _check_labels(folder: Path, images: "ImageSet", judge: "Classifier") -> None:
    from robust201.training.label_check import TRUSTED_FRACTION, read_labels

    read = read_labels(folder, images, judge)
    console.say(
        f"An independent network reads the label that they carry on {read.own:.0%} of the images, and that of the "
        f"image they start from on {read.origin:.0%} ({read.n_images:,} images for which these differ)."
    )
    if not read.carries_labels:
        console.say(
            f"warning: these are no robust features. Fewer than {TRUSTED_FRACTION:.0%} of the images carry their "
            "label for another network. NETWORK is not robust enough. Train it against a larger epsilon, or for longer."
        )


def _identify_network(network: str) -> dict[str, Any]:
    """Identify a network apart from its weights, independently of the path and spelling by which it was given."""
    if ":" in network:
        from robust201.core.user_code import hash_file

        file, _, function = network.rpartition(":")
        return {"function": function, "file_sha256": hash_file(Path(file))}
    from robust201.spaces import find_architecture

    space, architecture = find_architecture(_architecture(network))
    return {"space": space.name, "architecture": architecture}


def _architecture(text: str) -> int | str:
    return int(text) if text.isdigit() else text


def _load_classifier(
    network: str, dataset: str, store: Path | None, weights: Path | None, device: str, **training: Any
) -> "Classifier":
    if ":" not in network:
        from robust201.api import load_model

        return load_model(_architecture(network), dataset, store, weights=weights, device=device, **training)
    from robust201.images import dataset as dataset_spec
    from robust201.models.classifier import Classifier
    from robust201.models.user_module import choose_given_device

    if store is not None:
        raise ConfigError(
            f"Loading a network failed for {network!r}: expected --weights FILE, or weights that its function sets, "
            "got --store. Leave --store out."
        )
    spec = dataset_spec(dataset)
    return Classifier(
        build_module(network, weights), spec.normalisation, spec.n_classes, device=choose_given_device(device)
    )
