"""The report's gallery of individual images: those that attacks and corruptions break most and least often.

An attack or a corruption breaks an image for a network if the network classifies the clean image correctly, but not the
perturbed image.
"""

import base64
import hashlib
import html
import io
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from robust201.analysis.broken_images import find_broken_images, weakest_breaking_strengths
from robust201.analysis.labels import key_label, strength_label
from robust201.core.errors import DatasetError

if TYPE_CHECKING:
    import pandas as pd

    from robust201.analysis.broken_images import BrokenImages
    from robust201.analysis.dataset_results import DatasetResults
    from robust201.core.records import ImageSet

MIN_THUMBNAIL_SIZE = 96
"""Minimum length of a thumbnail's longer side, in pixels on the page."""


def image_section(results: "DatasetResults", images: "ImageSet | None") -> str:
    """Return the HTML of the images that are broken most and least often, or "" without stored per-image outcomes.

    Args:
        results: results of a dataset.
        images: the dataset's test images, for thumbnails; if None, only rows and labels are shown.

    Raises:
        DatasetError: the images differ from the evaluated images.
    """
    broken_images = find_broken_images(results)
    if broken_images is None or broken_images.images.empty:
        return ""
    intro = (
        f"Images that at least half of the {broken_images.n_networks:,} networks classify correctly. They are ordered "
        "by the fraction of evaluations under attacks and corruptions that break them (correct on the clean image, "
        "wrong on the perturbed one). Each image is listed with the weakest strengths that break it for half of these "
        "networks."
    )
    if images is None:
        intro += " Exports contain no pixels; `robust201 report --images DATA` adds thumbnails."
    intro += " `robust201 show FILE:FUNCTION --data DATA --images ROW` draws an image before and after an attack."
    groups = [
        ("Most often broken", broken_images.most_broken),
        ("Least often broken", broken_images.least_broken),
    ]
    group_sections = "".join(
        f'<h4>{title}</h4><ul class="cards images">{"".join(_image_cards(rows, broken_images, results, images))}</ul>'
        for title, rows in groups
        if len(rows)
    )
    return f'<h3>Single images</h3><p class="muted">{html.escape(intro)}</p>{group_sections}'


def _image_cards(
    rows: "pd.DataFrame", broken_images: "BrokenImages", results: "DatasetResults", images: "ImageSet | None"
) -> list[str]:
    class_names = results.class_names(results.n_classes or int(broken_images.images["label"].max()) + 1)
    cards = []
    for position, row in rows.iterrows():
        n_networks_by_evaluation = broken_images.n_networks_by_evaluation(int(str(position)))
        label = html.escape(class_names[int(row["label"])])
        picture = "" if images is None else _thumbnail(images, int(row["row"]), str(row["sha256"]), label)
        cards.append(
            f'<li class="card">{picture}<p><b>Image {row["row"]:,}</b>, {label}<br>broken in '
            f"{row['broken_fraction']:.0%} of evaluations, classified correctly by {row['n_clean_correct']:,} of "
            f"{broken_images.n_networks:,}</p>"
            f"{_describe_breaking_evaluations(n_networks_by_evaluation, int(row['n_clean_correct']), results)}</li>"
        )
    return cards


def _describe_breaking_evaluations(
    n_networks_by_evaluation: Mapping[tuple[str, float], int], n_clean_correct: int, results: "DatasetResults"
) -> str:
    """Return the weakest evaluations that break an image for half of the networks, and a foldable table of counts."""
    weakest = weakest_breaking_strengths(n_networks_by_evaluation, n_clean_correct)
    attacks = [key for key in results.keys("attack") if key in weakest]
    descriptions = [f"{key_label(key)} {strength_label(key, weakest[key], results.strengths(key))}" for key in attacks]
    corruptions = results.keys("corruption")
    breaking_corruptions = sorted((weakest[key], key_label(key)) for key in corruptions if key in weakest)
    if breaking_corruptions:
        severity, weakest_corruption = breaking_corruptions[0]
        descriptions.append(
            f"{len(breaking_corruptions)} of {len(corruptions)} corruptions (the weakest: {weakest_corruption}, "
            f"severity {severity:g})"
        )
    summary = html.escape("; ".join(descriptions) or "not broken by any evaluation")
    counts_by_key: dict[str, list[str]] = {}
    for (key, strength), count in n_networks_by_evaluation.items():
        counts_by_key.setdefault(key, []).append(f"{strength:g}: {count}")
    table_rows = [
        f"<tr><th>{html.escape(key_label(key))}</th><td>{', '.join(cells)}</td></tr>"
        for key, cells in counts_by_key.items()
    ]
    return (
        f'<p class="muted">{summary}</p><details><summary>Numbers of networks by strength</summary>'
        '<div class="scroll" tabindex="0" role="region" aria-label="Numbers of networks by strength">'
        f'<table class="numbers"><tbody>{"".join(table_rows)}</tbody></table></div></details>'
    )


def _thumbnail(images: "ImageSet", row: int, sha256: str, label: str) -> str:
    """Return the HTML of one image, after checking the hash of its pixels."""
    from PIL import Image

    matches = np.flatnonzero(images.indices == row)
    pixels = images.images[matches[0]] if len(matches) else None
    if pixels is None or hashlib.sha256(np.ascontiguousarray(pixels).tobytes()).hexdigest() != sha256:
        raise DatasetError(
            f"Showing images failed for row {row:,}: expected the evaluated image, whose SHA-256 begins with "
            f"{sha256[:16]}, got {'other pixels' if len(matches) else 'no image'}. Use the images of the "
            "dataset's test split."
        )
    factor = -(-MIN_THUMBNAIL_SIZE // max(pixels.shape[1:]))
    # Pillow expects grey images without a channel axis.
    array = pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0)
    picture = Image.fromarray(np.ascontiguousarray(array))
    picture = picture.resize((picture.width * factor, picture.height * factor), Image.Resampling.NEAREST)
    stream = io.BytesIO()
    picture.save(stream, "PNG", optimize=True)
    encoded = base64.b64encode(stream.getvalue()).decode()
    return f'<img alt="image {row}, {label}" src="data:image/png;base64,{encoded}" height="{picture.height}">'
