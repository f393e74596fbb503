"""Write rayjob_fields.txt from a RayJob CRD of KubeRay; tests compare jobs/kuberay-rayjob.yaml with this file.

    python -m tests.golden.make_rayjob_fields CRD.yaml VERSION

CRD.yaml is helm-chart/kuberay-operator/crds/ray.io_rayjobs.yaml of the KubeRay release VERSION
(https://github.com/ray-project/kuberay). Each line has the path and the type of a field and, if the CRD lists them, its
values. The status, the metadata and unused parts of a pod template (affinity, ephemeral containers) are omitted.
"""

import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

API_VERSION = "v1"
FIELDS = Path(__file__).with_name("rayjob_fields.txt")
# The CRD contains Kubernetes' pod template three times, and each pod template contains the fields of a container twice.
# rayjob_fields.txt contains the fields of the pod template and of the container only once.
POD_TEMPLATES = (
    "spec.submitterPodTemplate",
    "spec.rayClusterSpec.headGroupSpec.template",
    "spec.rayClusterSpec.workerGroupSpecs[].template",
)
CONTAINERS = ("PodTemplate.spec.initContainers[]", "PodTemplate.spec.containers[]")
# Beginnings of the paths of fields that are omitted.
IGNORED = ("PodTemplate.spec.ephemeralContainers", "PodTemplate.spec.affinity.", "status", "metadata")


def walk(schema: dict[str, Any], path: str = "") -> Iterator[str]:
    """Yield one line per field of an OpenAPI schema."""
    for name, field in sorted(schema.get("properties", {}).items()):
        field_path = f"{path}.{name}".lstrip(".")
        if field_path.startswith(IGNORED):
            continue
        shortened_path = "PodTemplate" if field_path in POD_TEMPLATES else field_path
        type_name = field.get("type", "any")
        if isinstance(field.get("additionalProperties"), dict):
            type_name = "map"
        values = f" {'|'.join(field['enum'])}" if "enum" in field and type_name == "string" else ""
        yield f"{field_path} {shortened_path if shortened_path != field_path else type_name}{values}"
        yield from walk(field, shortened_path)
        if "items" in field:
            item_path = f"{shortened_path}[]"
            shortened_item_path = "Container" if item_path in CONTAINERS else item_path
            item_type = field["items"].get("type", "any")
            yield f"{item_path} {shortened_item_path if shortened_item_path != item_path else item_type}"
            yield from walk(field["items"], shortened_item_path)


def main(crd: Path, version: str) -> None:
    crd_text = crd.read_text()
    versions = {
        version_entry["name"]: version_entry["schema"]["openAPIV3Schema"]
        for version_entry in yaml.safe_load(crd_text)["spec"]["versions"]
    }
    lines = list(dict.fromkeys(walk(versions[API_VERSION])))
    digest = hashlib.sha256(crd_text.encode()).hexdigest()
    header = (
        f"# Fields of the RayJob CRD ray.io/{API_VERSION}, KubeRay {version} (Apache-2.0): "
        f"crds/ray.io_rayjobs.yaml, SHA-256 {digest}. Made by make_rayjob_fields.py."
    )
    FIELDS.write_text("\n".join([header, *lines]) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
