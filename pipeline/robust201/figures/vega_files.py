"""Figures as SVG, PDF and PNG: a specification is drawn by vl-convert, as wide as asked for."""

import base64
import json
import re
from functools import cache, lru_cache
from importlib.util import find_spec
from pathlib import Path

import vl_convert

from robust201.core.errors import RobustError
from robust201.figures.panels import POINTS, Figure, Spec, arrange, configure, wrap, write_spec
from robust201.spaces.cell_space import PAPER

PNG_DPI = 300

RASTER_POINTS = 500
"""So many marks of one kind in a panel become a picture inside an SVG or PDF."""

_SIZE = re.compile(r'width="([\d.]+)" height="([\d.]+)" viewBox="0 0 [\d.]+ [\d.]+"')
_CROWD = re.compile(rf'<g class="mark-(?:symbol|rect) role-mark[^>]*>(?:<path[^>]*/>){{{RASTER_POINTS},}}</g>')
_ID = re.compile(r'<(?:clipPath|linearGradient)[^>]*? id="([^"]+)"')
_NAMED = re.compile(r"""( id="|url\(#)([^")]+)("|\))""")
_SPOT = re.compile(r'transform="translate\(([-\d.]+),([-\d.]+)\)"')


def draw_file(figure: Figure, width: float, kind: str, *, notes: tuple[str, ...] = (), title: str = "") -> bytes:
    """Draw a figure as a file; equal figures give equal bytes.

    Args:
        figure: the figure.
        width: of the file, in inches.
        kind: ``svg``, ``pdf`` or ``png``.
        notes: what stands below it.
        title: what stands above it.
    """
    points = POINTS * width
    svg = draw_svg(specify_file(figure, points, notes=notes, title=title))
    excess = _measure(svg)[0] - points
    if excess > 0.5:  # two figures above one another are wider than each
        svg = draw_svg(specify_file(figure, points - excess, notes=notes, title=title))
    return convert(_widen(svg, points), kind)


def specify_file(figure: Figure, width: float, *, notes: tuple[str, ...] = (), title: str = "") -> Spec:
    """Give the specification of a file of so many points."""
    bodies = [_fit(figure, width)]
    if figure.above is not None:
        bodies.insert(0, _fit(figure.above, width))
    lines = [line for note in (*figure.notes, *notes) for line in wrap(note, width)]
    # A label on every mark would double a file; the figure as a whole has one.
    return write_spec(bodies, configure(PAPER) | {"aria": False}, label=figure.label, notes=lines, title=title)


def _fit(figure: Figure, width: float) -> Spec:
    """Arrange a figure so that it is as wide as asked for, or narrower: what axes take is known once they are drawn."""
    panels = [panel for panel in figure.panels if panel.in_file]
    spare = 45.0
    for _ in range(2):
        body = arrange(figure, panels, width, spare)
        natural = _measure(draw_svg(write_spec([body], configure(PAPER))))[0]
        if abs(natural - width) < 1:
            return body
        spare += natural - width
    return arrange(figure, panels, width, spare)


def convert(svg: str, kind: str) -> bytes:
    """Turn a drawing in points into a file's bytes."""
    if kind == "png":
        # A pixel that is begun is a pixel.
        svg = _SIZE.sub(
            lambda found: found[0].replace(f'"{found[1]}"', f'"{float(found[1]) + 0.01:g}"', 1), svg, count=1
        )
        return vl_convert.svg_to_png(svg, ppi=PNG_DPI)
    svg = _CROWD.sub(lambda found: _rasterise(found[0]), svg)
    if kind == "pdf":
        return vl_convert.svg_to_pdf(svg)
    return _SIZE.sub(r'width="\1pt" height="\2pt" viewBox="0 0 \1 \2"', svg, count=1).encode() + b"\n"


def draw_svg(spec: Spec) -> str:
    """Draw a specification, a pixel for a point."""
    return _draw_text(json.dumps(spec))


@lru_cache(maxsize=1)  # a figure without texts above and below is drawn as it was measured
def _draw_text(spec: str) -> str:
    _register_fonts()
    svg = vl_convert.vegalite_to_svg(spec, vl_version="6.4", allowed_base_urls=[])
    # Vega numbers clips and gradients through all drawings of a process.
    numbers = {name: f"part{place}" for place, name in enumerate(dict.fromkeys(_ID.findall(svg)))}
    return _NAMED.sub(lambda found: f"{found[1]}{numbers.get(found[2], found[2])}{found[3]}", svg)


def _measure(svg: str) -> tuple[float, float]:
    found = _SIZE.search(svg)
    if found is None:
        raise RobustError("Measuring a drawing failed: expected a width and a height, got none.")
    return float(found[1]), float(found[2])


def _widen(svg: str, width: float) -> str:
    """Let a drawing be exactly so wide, in the middle."""
    natural, height = _measure(svg)
    shift = (width - natural) / 2
    svg = svg.replace(f'<rect width="{natural:g}"', f'<rect width="{width:g}"', 1)
    start = svg.index(">", svg.index("<rect")) + 1
    moved = f'{svg[:start]}<g transform="translate({shift:g},0)">{svg[start:].removesuffix("</svg>")}</g></svg>'
    return _SIZE.sub(f'width="{width:g}" height="{height:g}" viewBox="0 0 {width:g} {height:g}"', moved, count=1)


def _rasterise(group: str) -> str:
    """Replace many marks by one picture of them."""
    spots = [(float(x), float(y)) for x, y in _SPOT.findall(group)]
    if not spots:
        return group
    margin = 6
    left, top = (min(axis) - margin for axis in zip(*spots, strict=True))
    right, bottom = (max(axis) + margin for axis in zip(*spots, strict=True))
    box = f'width="{right - left:g}" height="{bottom - top:g}"'
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" {box} viewBox="{left:g} {top:g} {right - left:g} {bottom - top:g}">'
    )
    png = base64.b64encode(vl_convert.svg_to_png(f"{head}{group}</svg>", ppi=PNG_DPI)).decode()
    return f'<image x="{left:g}" y="{top:g}" {box} xlink:href="data:image/png;base64,{png}"/>'


@cache
def _register_fonts() -> None:
    """Use the font that Matplotlib brings, so that text is the same on machines without fonts."""
    found = find_spec("matplotlib")
    if found is not None and found.origin is not None:
        vl_convert.register_font_directory(str(Path(found.origin).parent / "mpl-data" / "fonts" / "ttf"))
