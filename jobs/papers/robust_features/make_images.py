"""Makes the training images of the studies of robust features, and checks generated ones.

    python -m jobs.papers.robust_features.make_images robust DATA OUT       # D_R, with the shipped robust network
    python -m jobs.papers.robust_features.make_images non-robust DATA OUT   # D_NR, with train-natural.yaml's network
    python -m jobs.papers.robust_features.make_images published SOURCE OUT  # D_R of Ilyas et al.
    python -m jobs.papers.robust_features.make_images judge DATA OUT        # do the labels of D_R fit another network?

DATA is a folder with CIFAR-10; SOURCE one with the files CIFAR_ims and CIFAR_lab. An interrupted call resumes. `judge`
needs the weights that the controls prepare (jobs/papers/controls).
"""

import sys
from pathlib import Path

from pyautoattack.examples.resnet import ResNet18
from safetensors.torch import load_file

from robust201 import load_model
from robust201.core.records import Normalisation
from robust201.images import load_images, select
from robust201.images.torch_images import import_torch_images
from robust201.models.classifier import Classifier
from robust201.training.label_check import check_generated_labels
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
JUDGE = Path("runs/controls/weights/resnet18.safetensors")


def main(kind: str, source: Path, out: Path) -> None:
    if kind == "published":
        import_torch_images(source, out, n_classes=10)
        return
    images = select(load_images("cifar10", path=source, split="train"), count=N_IMAGES, seed=0)
    if kind == "judge":
        network = ResNet18()
        network.load_state_dict(load_file(JUDGE))
        judge = Classifier(network, Normalisation((0, 0, 0), (1, 1, 1)), 10)
        print(check_generated_labels(out, images, judge))
        return
    store, settings = SOURCES[kind]
    classifier = load_model(NETWORK, "cifar10", store)
    write_feature_images(out, images, classifier, settings, network={"space": "zoo", "architecture": NETWORK})


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
