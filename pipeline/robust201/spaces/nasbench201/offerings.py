"""What NAS-Bench-201 offers to those who read its results."""

from robust201.spaces.for_readers import Offerings
from robust201.spaces.nasbench201 import cells, drawing, neighbourhood

OFFERINGS = Offerings(
    title="NAS-Bench-201",
    about="A NAS-Bench-201 network repeats one cell: four nodes (in, 1, 2, out), and on each of its six edges one of "
    f"five operations, which makes {cells.N_ARCHITECTURES:,} cells.",
    operations=cells.OPERATIONS,
    operation_labels=drawing.OPERATION_LABELS,
    operation_colours=drawing.OPERATION_COLOURS,
    edges=cells.EDGES,
    edge_labels=neighbourhood.EDGE_LABELS,
    specs=cells.specs,
    isomorphs=cells.isomorphs,
    meta=cells.meta,
    parse=cells.parse,
    kernel_parameters=neighbourhood.kernel_parameters,
    max_kernel_parameters=54,
    # There are 408 cells of this size (Jung, Lukasik and Keuper, ICLR 2023, section 5.3).
    reference_kernel_parameters=18,
    edit_distance=neighbourhood.edit_distance,
    neighbours=neighbourhood.neighbours,
    draw_cell=drawing.draw_cell,
    draw_every_edge=drawing.draw_every_edge,
)
