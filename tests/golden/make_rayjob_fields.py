"""Write rayjob_fields.txt, against which jobs/kuberay-rayjob.yaml is checked, from a RayJob CRD of KubeRay.

    python -m tests.golden.make_rayjob_fields CRD.yaml VERSION

CRD.yaml is helm-chart/kuberay-operator/crds/ray.io_rayjobs.yaml of the KubeRay release VERSION
(https://github.com/ray-project/kuberay). Each line has a field's path, its type and, if the CRD lists them, its values.
The status and unused parts of a pod template (affinity, ephemeral containers) are left out.
"""

import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

API_VERSION = "v1"
FIELDS = Path(__file__).with_name("rayjob_fields.txt")
# The CRD contains Kubernetes' pod template three times, each with its container twice; the list has both only once.
POD_TEMPLATES = (
    "spec.submitterPodTemplate",
    "spec.rayClusterSpec.headGroupSpec.template",
    "spec.rayClusterSpec.workerGroupSpecs[].template",
)
CONTAINERS = ("PodTemplate.spec.initContainers[]", "PodTemplate.spec.containers[]")
IGNORED = ("PodTemplate.spec.ephemeralContainers", "PodTemplate.spec.affinity.", "status", "metadata")


def walk(schema: dict[str, Any], path: str = "") -> Iterator[str]:
    """Yield one line per field of an OpenAPI schema."""
    for name, field in sorted(schema.get("properties", {}).items()):
        here = f"{path}.{name}".lstrip(".")
        if here.startswith(IGNORED):
            continue
        short = "PodTemplate" if here in POD_TEMPLATES else here
        kind = field.get("type", "any")
        if isinstance(field.get("additionalProperties"), dict):
            kind = "map"
        values = f" {'|'.join(field['enum'])}" if "enum" in field and kind == "string" else ""
        yield f"{here} {short if short != here else kind}{values}"
        yield from walk(field, short)
        if "items" in field:
            entry = f"{short}[]"
            shared = "Container" if entry in CONTAINERS else entry
            yield f"{entry} {shared if shared != entry else field['items'].get('type', 'any')}"
            yield from walk(field["items"], shared)


def main(crd: Path, version: str) -> None:
    text = crd.read_text()
    versions = {entry["name"]: entry["schema"]["openAPIV3Schema"] for entry in yaml.safe_load(text)["spec"]["versions"]}
    lines = list(dict.fromkeys(walk(versions[API_VERSION])))
    head = (
        f"# Fields of the RayJob CRD ray.io/{API_VERSION}, KubeRay {version} (Apache-2.0): "
        f"crds/ray.io_rayjobs.yaml, SHA-256 {hashlib.sha256(text.encode()).hexdigest()}. Made by make_rayjob_fields.py."
    )
    FIELDS.write_text("\n".join([head, *lines]) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
