"""Make the training images for the studies of robust features, and check generated images.

    python -m jobs.papers.robust_features.make_images robust DATA OUT       # D_R, with the shipped robust network
    python -m jobs.papers.robust_features.make_images non-robust DATA OUT   # D_NR, with train-natural.yaml's network
    python -m jobs.papers.robust_features.make_images published SOURCE OUT  # D_R of Ilyas et al.
    python -m jobs.papers.robust_features.make_images judge DATA OUT        # test D_R's labels with another network

DATA is a folder with CIFAR-10, SOURCE a folder with the files CIFAR_ims and CIFAR_lab. An interrupted call resumes.
`judge` needs the weights that the controls prepare (jobs/papers/controls).
"""

import sys
from pathlib import Path

import numpy as np
import torch
from pyautoattack.examples.resnet import ResNet18
from safetensors.torch import load_file

from robust201 import load_model
from robust201.core.errors import DatasetError
from robust201.core.files import sha256_of
from robust201.core.records import ImageSet, Normalisation
from robust201.images import load_images, select
from robust201.images.checks import LabelledImages, check_labels
from robust201.images.store import ArrayFolder, find_generated_split, to_8_bits, write_generated_split
from robust201.networks.classifier import Classifier
from robust201.training.robust_features import FeatureSettings, write_feature_images

N_IMAGES = 10_000
NETWORK = "resnet18-w8"
SOURCES = {
    "robust": (
        "bundled:benchmark_data/robust-cifar10",
        FeatureSettings.of("representation", steps=60, step_size=0.4),
    ),
    "non-robust": (
        "runs/robust-features-cifar10/natural-store",
        FeatureSettings.of("random-target", steps=50),
    ),
}
JUDGE_WEIGHTS = Path("runs/controls/weights/resnet18.safetensors")


def import_published(source: Path, out: Path) -> None:
    """Convert CIFAR_ims (float tensors in [0, 1]) and CIFAR_lab, torch files of one tensor or a list of batches."""
    files = [source / "CIFAR_ims", source / "CIFAR_lab"]
    recipe = {"kind": "torch", "files": {file.name: sha256_of(file) for file in files}, "rounding": "half up to 8 bits"}
    if find_generated_split(out, "train", recipe) is None:
        contents = [torch.load(file, weights_only=True) for file in files]
        images, labels = (torch.cat([*content]) if isinstance(content, list) else content for content in contents)
        pixels, classes = images.detach().numpy(), labels.numpy().astype(np.int64)
        if len(pixels) != len(classes) or not ((pixels >= 0) & (pixels <= 1)).all():
            raise SystemExit(f"{source}: expected pixels in [0, 1] and one label per image; download the files again")
        try:
            check_labels(files[1], classes, 10)
        except DatasetError as error:
            raise SystemExit(str(error)) from error
        converted = LabelledImages(to_8_bits(pixels), classes)
        write_generated_split(out, "train", converted, recipe=recipe, n_classes=10)


def judge_labels(folder: Path, images: ImageSet, judge: Classifier) -> tuple[float, float]:
    """Return the fractions of images that an independent network assigns to their label, and to their start's label.

    Images whose two labels are equal are excluded.
    """
    arrays = ArrayFolder(folder / "train")
    generated, labels, start_rows = (arrays.read(name) for name in ("images", "labels", "start_rows"))
    label_of_row = dict(zip(images.indices.tolist(), images.labels.tolist(), strict=True))
    start_labels = np.array([label_of_row[row] for row in start_rows.tolist()])
    with torch.no_grad():
        batches = torch.split(torch.from_numpy(np.array(generated)).float() / 255, 500)
        predictions = np.concatenate([judge(batch).argmax(dim=1).numpy() for batch in batches])
    is_counted = labels != start_labels
    return float((predictions == labels)[is_counted].mean()), float((predictions == start_labels)[is_counted].mean())


def main(command: str, source: Path, out: Path) -> None:
    if command == "published":
        import_published(source, out)
        return
    images = select(load_images("cifar10", path=source, split="train"), count=N_IMAGES, seed=0)
    if command == "judge":
        network = ResNet18()
        network.load_state_dict(load_file(JUDGE_WEIGHTS))
        judge = Classifier(network, Normalisation((0, 0, 0), (1, 1, 1)), 10)
        print("fraction classified as the label, and as the starting image's label:", *judge_labels(out, images, judge))
        return
    store, settings = SOURCES[command]
    classifier = load_model(NETWORK, "cifar10", store)
    write_feature_images(out, images, classifier, settings, network={"space": "zoo", "architecture": NETWORK})


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
