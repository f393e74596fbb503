"""Figures as SVG, PDF and PNG files of a given width, drawn by vl-convert."""

import json
import re
from collections.abc import Sequence

import vl_convert

from robust201.core.colours import PAPER
from robust201.core.errors import RobustError
from robust201.figures.panels import POINTS_PER_INCH, Figure, Spec, specify_file

PNG_DPI = 300

_SIZE = re.compile(r'width="([\d.]+)" height="([\d.]+)" viewBox="0 0 [\d.]+ [\d.]+"')
_ID = re.compile(r'<(?:clipPath|linearGradient)[^>]*? id="([^"]+)"')
_REFERENCE = re.compile(r"""( id="|url\(#)([^")]+)("|\))""")


def draw_file(figure: Figure, width: float, file_format: str, *, notes: Sequence[str] = ()) -> bytes:
    """Draw a figure and return the file's bytes; equal figures give equal bytes, except PDFs with interval bands.

    Args:
        figure: the figure.
        width: width of the file, in inches.
        file_format: ``svg``, ``pdf`` or ``png``.
        notes: text below the figure.
    """
    width_in_points = POINTS_PER_INCH * width
    axes_width = 45.0
    for _ in range(2):  # the width of the axes' labels is only known once they are drawn
        svg = draw_svg(specify_file(figure, width_in_points, axes_width, PAPER, notes=notes))
        excess_width = _read_width(svg) - width_in_points
        if abs(excess_width) < 1:
            break
        axes_width += excess_width
    # Stretching removes the remaining difference, which is less than a point.
    stretched = rf'width="{width_in_points:g}" height="\2" viewBox="0 0 \1 \2" preserveAspectRatio="none"'
    return convert_svg(_SIZE.sub(stretched, svg, count=1), file_format)


def convert_svg(svg: str, file_format: str) -> bytes:
    """Convert an SVG, whose lengths are in points, to the bytes of a file."""
    if file_format == "png":
        # The size in pixels is rounded down, so the drawing is enlarged slightly.
        svg = _SIZE.sub(
            lambda match: match[0].replace(f'"{match[1]}"', f'"{float(match[1]) + 0.01:g}"', 1), svg, count=1
        )
        return vl_convert.svg_to_png(svg, ppi=PNG_DPI)
    if file_format == "pdf":
        return vl_convert.svg_to_pdf(svg)
    return _SIZE.sub(r'width="\1pt" height="\2pt" viewBox="0 0 \1 \2"', svg, count=1).encode() + b"\n"


def draw_svg(spec: Spec) -> str:
    """Draw a specification with one pixel per point."""
    svg = vl_convert.vegalite_to_svg(json.dumps(spec), vl_version="6.4", allowed_base_urls=[])
    # The ids that Vega gives to clips and gradients depend on earlier drawings in the process, so they are renumbered.
    stable_ids = {name: f"part{index}" for index, name in enumerate(dict.fromkeys(_ID.findall(svg)))}
    return _REFERENCE.sub(lambda match: f"{match[1]}{stable_ids.get(match[2], match[2])}{match[3]}", svg)


def _read_width(svg: str) -> float:
    """Return the width of an SVG, in points."""
    match = _SIZE.search(svg)
    if match is None:
        raise RobustError("Measuring a drawing failed: the SVG has no width and height.")
    return float(match[1])
