"""`robust201 train`: networks of our own where no published weights are."""

from pathlib import Path
from typing import Annotated

import typer

from robust201.cli import console


def train(
    out: Annotated[Path, typer.Option("--out", help="The checkpoint store to fill; created if absent.")],
    architectures: Annotated[str, typer.Option(help="Indices, ranges and cell strings, separated by commas.")],
    dataset: Annotated[str, typer.Option(help="Dataset to train on.")] = "digits",
    path: Annotated[Path | None, typer.Option(help="Path of its images.")] = None,
    form: Annotated[str | None, typer.Option("--format", help="Format of the image files; detected if absent.")] = None,
    channels: Annotated[int, typer.Option(min=1, help="Channels C of the first stage.")] = 16,
    cells: Annotated[int, typer.Option(min=1, help="Cells N in each stage.")] = 5,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the training images.")] = 200,
    batch_size: Annotated[int, typer.Option(min=2, help="Images per step.")] = 256,
    learning_rate: Annotated[float, typer.Option(help="Initial learning rate; falls to 0 along a cosine.")] = 0.1,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the initial weights and of every draw.")] = 777,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads; the last bits of the weights depend on them.")] = 1,
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")] = "cpu",
) -> None:
    """Train networks by the published recipe into a checkpoint store, where no published weights exist."""
    from robust201.images import dataset as dataset_spec
    from robust201.images import load_images
    from robust201.spaces import DEFAULT_SPACE, SPACES
    from robust201.training.published import TrainingSettings, train_into_store
    from robust201.weights.store import CheckpointStore

    spec = dataset_spec(dataset)
    settings = TrainingSettings(
        channels=channels,
        cells=cells,
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=learning_rate,
        flip=spec.horizontal_flip,
        crop_padding=spec.crop_padding,
        seed=seed,
        threads=threads,
        device=device,
    )
    indices = [int(index) for index in SPACES[DEFAULT_SPACE].select(architectures)]
    images = load_images(dataset, form=form, path=path, split="train")
    held_out = load_images(dataset, form=form, path=path, split="test")
    with CheckpointStore(out) as store, console.counting("Training, epochs") as progress:

        def tell(index: int, epoch: int, loss: float, accuracy: float) -> None:
            del loss, accuracy
            progress(indices.index(index) * epochs + epoch, len(indices) * epochs)

        for record in train_into_store(indices, images, held_out, settings, store, progress=tell):
            accuracy = record.training["outcome"]["test_accuracy"] if record.training else float("nan")
            named = f", recipe {record.recipe}" if record.recipe else ""
            typer.echo(f"#{record.index} test accuracy {accuracy:.4f}{named}")
