"""The table of figures: their captions and requirements, and the functions that compute and draw them.

To add a figure, write a function in `figure_data` that returns its numbers as a DataFrame and one in `specifications`
that draws them, and add a row here. The command line, the report and the table-wide tests then include it.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import pandas as pd

from robust201.analysis.dataset_results import MEANS, DatasetResults
from robust201.core.errors import ConfigError, closest
from robust201.figures import figure_data, specifications
from robust201.figures.palette import FEW_NETWORKS
from robust201.figures.panels import Figure


class FigureRow(NamedTuple):
    """A figure in the table.

    Attributes:
        name: name on the command line, in file names and in addresses of the page.
        title: short title.
        caption: description in a sentence or two.
        source: the corresponding figures of Jung, Lukasik and Keuper (ICLR 2023), or ``""``.
        needs: what the results must contain.
        compute: function that returns the figure's numbers; an empty frame if the results do not suffice.
        specify: function that returns the drawing of a frame, for files and the page.
        shows_cells: whether the page draws the cells of the frame's `architecture` column below the figure.
        across: whether it shows all datasets of a folder together, whichever dataset it is computed from.
        averages: whether it shows means over attacks or corruptions, whose weighting it must then state.
        least: minimum number of networks; distributions and rank correlations need several.
        most: maximum number of networks that the figure can show individually.
    """

    name: str
    title: str
    caption: str
    source: str
    needs: str
    compute: Callable[[DatasetResults], pd.DataFrame]
    specify: Callable[[pd.DataFrame, DatasetResults], Figure]
    shows_cells: bool = False
    across: bool = False
    averages: bool = False
    least: int = 1
    most: int | None = None

    def numbers(self, results: DatasetResults) -> pd.DataFrame:
        """Return the figure's numbers; an empty frame if the results do not suffice or have too many networks."""
        n_networks = len(results.accuracies)
        if n_networks < self.least or (self.most is not None and n_networks > self.most):
            return pd.DataFrame()
        return self.compute(results)

    @property
    def requirement(self) -> str:
        """What the results must contain, including the number of networks."""
        count = f", of {self.least} networks or more" if self.least > 1 else ""
        return f"{self.needs}{count if self.most is None else f', of at most {self.most} networks'}"

    def describe(self, results: DatasetResults) -> str:
        """Return the caption, with the weighting of means and the paper's corresponding figures."""
        averaged = f" {MEANS[results.mean]}" if self.averages else ""
        return f"{self.caption}{averaged}{f' After {self.source} of Jung et al., ICLR 2023.' if self.source else ''}"


_MIN_SUMMARISED = FEW_NETWORKS + 1
"""Minimum number of networks for box plots and rank correlations."""

FIGURES: dict[str, FigureRow] = {
    row.name: row
    for row in (
        FigureRow(
            "attack-curves",
            "Accuracy over epsilon, network by network",
            "Accuracy of each network over the epsilons of each attack, from clean images on; bands are 95% intervals "
            "over images, the dashed line is the accuracy of guessing (chance). Where one epsilon is far beyond the "
            "others, all are drawn at equal distances.",
            "",
            "an attack",
            partial(figure_data.accuracy_curves, kind="attack"),
            specifications.specify_curves,
            most=FEW_NETWORKS,
        ),
        FigureRow(
            "corruption-curves",
            "Accuracy over severity, network by network",
            "Accuracy of each network over the severities of each corruption, from clean images on; bands as above.",
            "",
            "a corruption",
            partial(figure_data.accuracy_curves, kind="corruption"),
            specifications.specify_curves,
            most=FEW_NETWORKS,
        ),
        FigureRow(
            "step-curves",
            "Accuracy over the attack's steps, network by network",
            "Accuracy of each network by the number of steps (of Square: queries) of each attack, at the epsilon "
            "nearest to 1/255 (of other norms, nearest to 1), from clean images on; bands are 95% intervals over "
            "images. A curve is of one run with all steps: an image is fooled from the first step on that fools it.",
            "",
            "an attack with the measurement `steps`",
            figure_data.step_curves,
            specifications.specify_step_curves,
            most=FEW_NETWORKS,
        ),
        FigureRow(
            "attacks",
            "Accuracy under attack",
            "Accuracies of the evaluated architectures by attack and epsilon. Boxes span the quartiles, whiskers end "
            "at the furthest accuracy within 1.5 times their distance, dots lie beyond (if many, only the furthest); "
            "the dashed line is the accuracy of guessing (chance). If few dots are far from all boxes, the axis ends "
            "before them, and an arrow at its end says how many architectures are beyond.",
            "Fig. 2",
            "an attack",
            partial(figure_data.accuracy_boxes, kind="attack"),
            specifications.specify_boxes,
            least=_MIN_SUMMARISED,
        ),
        FigureRow(
            "corruptions",
            "Accuracy under corruption",
            "Accuracies of the evaluated architectures by corruption and severity, beside the clean accuracy; boxes as "
            "above.",
            "Fig. 4",
            "a corruption",
            partial(figure_data.accuracy_boxes, kind="corruption"),
            specifications.specify_boxes,
            least=_MIN_SUMMARISED,
        ),
        FigureRow(
            "rank-correlation",
            "Rank correlation between keys",
            "Kendall's tau-b between the accuracies of the evaluated architectures under every two keys, attacks at "
            "the epsilon nearest to 1/255 (of other norms, nearest to 1), corruptions at the severity nearest to 3; "
            "“–” if all accuracies under one of the keys are equal.",
            "",
            "two keys",
            figure_data.key_correlations,
            specifications.specify_rank_correlation,
            least=_MIN_SUMMARISED,
        ),
        FigureRow(
            "rank-correlation-attacks",
            "Rank correlation between attacks",
            "Kendall's tau-b between clean accuracies and those under every attack at every epsilon.",
            "Fig. 3",
            "an attack at two epsilons or with a clean accuracy",
            figure_data.attack_correlations,
            specifications.specify_rank_correlation,
            least=_MIN_SUMMARISED,
        ),
        FigureRow(
            "rank-correlation-datasets",
            "Rank correlation between datasets",
            "Kendall's tau-b between clean accuracies and those under every attack at every epsilon, of all datasets, "
            "over the architectures that both have; the epsilons of an attack ascend.",
            "Fig. 17",
            "two datasets with clean accuracies or an attack",
            figure_data.dataset_correlations,
            specifications.specify_dataset_correlation,
            across=True,
            least=_MIN_SUMMARISED,
        ),
        FigureRow(
            "rank-correlation-corruptions",
            "Rank correlation between corruptions",
            "Kendall's tau-b between clean accuracies and those under every corruption, at one severity.",
            "Fig. 5",
            "two corruptions, or one and a clean accuracy",
            figure_data.corruption_correlations,
            specifications.specify_rank_correlation,
            least=_MIN_SUMMARISED,
        ),
        FigureRow(
            "rank-correlation-robustness",
            "Does robustness R rank architectures differently?",
            "Kendall's tau-b between clean accuracies, mean accuracies under an attack, and robustness R under it: the "
            "area under the accuracies from strength 0 to the largest, divided by the area for an unchanged clean "
            "accuracy. R does not reward a high clean accuracy.",
            "",
            "clean accuracies, and an attack at two epsilons",
            figure_data.robustness_correlations,
            specifications.specify_rank_correlation,
            least=_MIN_SUMMARISED,
        ),
        FigureRow(
            "confidence",
            "Confidence",
            "Mean confidence (softmax probability) of an architecture in its prediction, where that is right and where "
            "it is wrong, and in the true class: the median over architectures and the range between the quartiles. "
            "AutoAttack (aa_) returns the clean image where it fails: its “where right” covers the clean images that "
            "withstood the attack, fewer and more confident ones at larger ε, while fgsm and pgd perturb all images. "
            "If few images are misclassified, “where wrong” is based on those few.",
            "Figs. 13 (bottom) and 15",
            "the measurement `confidence`",
            figure_data.confidence_curves,
            specifications.specify_confidence,
        ),
        FigureRow(
            "class-confidence",
            "Confidence, class by class",
            "Mean confidence of an architecture in a class, over the images of this class and over the images that it "
            "predicts as this class: the median over architectures and the range between the quartiles, for clean "
            "images, attacks at the epsilon nearest to 1/255 (of other norms, nearest to 1), and corruptions at the "
            "severity nearest to 3.",
            "Fig. 13 (top and middle)",
            "the measurement `confidence`",
            figure_data.class_confidences,
            specifications.specify_class_confidences,
        ),
        FigureRow(
            "one-class-confidence",
            "Confidence in one class",
            "The same for a single class over all strengths. It is class 0 unless `robust201 plot --class` names "
            "another. If few images under an attack are predicted as the class, this confidence is based on those few.",
            "Fig. 14",
            "the measurement `confidence`",
            figure_data.one_class_confidence,
            specifications.specify_one_class_confidence,
        ),
        FigureRow(
            "confusion",
            "Confusion matrices",
            "Confusion matrices summed over the evaluated architectures. A row contains the images of a true class and "
            "sums to 100%; fields below half a percent have no number.",
            "Fig. 16",
            "the measurement `cm`",
            figure_data.confusion_sums,
            specifications.specify_confusion,
        ),
        FigureRow(
            "clean-vs-robust",
            "Clean against robust accuracy",
            "One point per architecture, coloured by the kernel parameters of its cell, if it is one: 9 for a 3×3 "
            "and 1 for a 1×1 convolution that reaches the output. On the dotted line an attack would change nothing, "
            "the dashed one is the accuracy of guessing (chance). For the mean, the Pareto front is marked: no other "
            "architecture is better in one of the two accuracies and at least as good in the other. If few points are "
            "far from all others, the axes end before them; arrows at the border show how many there are.",
            "Fig. 27 (left)",
            "clean accuracies and an attack",
            partial(figure_data.clean_against, kind="attack"),
            specifications.specify_clean_against,
            averages=True,
        ),
        FigureRow(
            "clean-vs-corrupted",
            "Clean against corrupted accuracy",
            "One point per architecture, coloured by the kernel parameters of its cell, as above.",
            "Fig. 27 (right)",
            "clean accuracies and a corruption",
            partial(figure_data.clean_against, kind="corruption"),
            specifications.specify_clean_against,
            averages=True,
        ),
        FigureRow(
            "kernel-parameters",
            "Mean adversarial accuracy by kernel parameters",
            "Mean adversarial accuracies of the cells by kernel parameters: 9 for a 3×3 and 1 for a 1×1 "
            "convolution that reaches the output; boxes as above, a diamond at the mean over the cells, with its 95% "
            "interval.",
            "Fig. 28",
            "an attack, on architectures that are cells",
            figure_data.accuracy_by_kernel_parameters,
            specifications.specify_kernel_parameters,
            averages=True,
            least=_MIN_SUMMARISED,
        ),
        FigureRow(
            "measures",
            "Measures against accuracy",
            "One point per architecture: a measure of the network itself against its accuracy, clean and under "
            "every attack at the epsilon nearest to 1/255 (of other norms, nearest to 1), from 12 "
            "networks on with Spearman's rank correlation and Kendall's tau-b; arrows at the border as above.",
            "",
            "a measure, such as `jacobian`, and a clean accuracy or an attack",
            figure_data.measures_against,
            specifications.specify_measures_against,
        ),
        FigureRow(
            "measure-correlations",
            "Measures as predictors of accuracy",
            "Kendall's tau-b of every measure, and of the numbers of parameters and multiply-accumulates, with clean "
            "accuracies and those under every key and strength, over the architectures that have the measure.",
            "Fig. 6",
            "a measure, such as `jacobian`, and an accuracy, of eight architectures or more",
            figure_data.measure_correlations,
            specifications.specify_measure_correlations,
        ),
        FigureRow(
            "operation-effects",
            "What each operation adds on each edge",
            "Mean accuracy of all cells that have an operation on an edge, minus the mean over all cells of the space, "
            "in percentage points; cells have the accuracy of their isomorphism class. Lines span 95% intervals from a "
            "bootstrap over classes.",
            "",
            "an accuracy of all isomorphism classes, of architectures that are cells",
            figure_data.effects_by_score,
            specifications.specify_operation_effects,
            averages=True,
        ),
        FigureRow(
            "top-cells",
            "The best cells, edge by edge",
            "The operations of the most accurate cells, at most twenty: one column per cell, best on the left, its "
            "rank above it (= where others share it), one row per edge; of all evaluated cells, and of those with 18 "
            "kernel parameters.",
            "Figs. 7 and 29",
            "an accuracy, of architectures that are cells",
            figure_data.top_cells,
            specifications.specify_top_cells,
            averages=True,
        ),
        FigureRow(
            "best-cells",
            "The best cell by each criterion",
            "On how many of the six edges the best cells differ. Among equally accurate cells (“one of 9”), the one "
            "that is better by the other means is shown (see Terms, Tie).",
            "Fig. 26",
            "an accuracy, of architectures that are cells",
            figure_data.best_cells,
            specifications.specify_best_cells,
            shows_cells=True,
            averages=True,
        ),
        FigureRow(
            "neighbours",
            "What one changed edge gains or loses",
            "The best cells with one edge changed: by how many percentage points the accuracy of the neighbour (of its "
            "isomorphism class) differs. A dot marks the cell's own operation; the class of an empty square was not "
            "evaluated. On the page, pointing at a square shows the 95% interval of the change, as if the two cells "
            "had been evaluated on different images.",
            "Fig. 30",
            "the best cell and one of its neighbours, of architectures that are cells",
            figure_data.neighbour_changes,
            specifications.specify_neighbours,
            averages=True,
        ),
    )
}
"""Figures by name, in the order of the page."""


def figure_row(name: str) -> FigureRow:
    """Return the figure of this name."""
    if name not in FIGURES:
        raise ConfigError(
            f"Looking up a figure failed: {name!r} is not in `robust201 plot --list`.{closest(name, FIGURES)}"
        )
    return FIGURES[name]
