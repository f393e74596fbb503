"""The table of figures, with their captions, requirements, and functions that compute and draw them.

To add a figure, write a function in `figure_data` that returns its numbers as a DataFrame and a function in `variants`
that draws them, and add a row here. The command line, the report and the tests of all figures then
include the figure.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import pandas as pd

from robust201.analysis.dataset_results import MEAN_NOTE, DatasetResults
from robust201.core.errors import ConfigError, did_you_mean
from robust201.figures import figure_data, variants
from robust201.figures.palette import MAX_NAMED_NETWORKS
from robust201.figures.panels import Figure


class FigureDefinition(NamedTuple):
    """A figure in the table.

    Attributes:
        name: name on the command line, in file names and in addresses of the page.
        title: short title.
        caption: description in a sentence or two.
        source: the corresponding figures of Jung, Lukasik and Keuper (ICLR 2023), or ``""``.
        required_results: results that the figure needs.
        compute: function that returns the figure's numbers; an empty frame if the results do not suffice.
        specify: function that returns the drawing of a frame, for files and the page.
        is_across_datasets: whether the figure shows all datasets of a folder together. The folder's results are then
            passed to `compute` as the results of any of its datasets.
        shows_means: whether the figure shows means over attacks or corruptions, so that it must state their weighting.
        min_networks: minimum number of networks; distributions and rank correlations need several.
        max_networks: maximum number of networks that the figure can show individually.
    """

    name: str
    title: str
    caption: str
    source: str
    required_results: str
    compute: Callable[[DatasetResults], pd.DataFrame]
    specify: Callable[[pd.DataFrame, DatasetResults], Figure]
    is_across_datasets: bool = False
    shows_means: bool = False
    min_networks: int = 1
    max_networks: int | None = None

    def compute_numbers(self, results: DatasetResults) -> pd.DataFrame:
        """Compute the figure's numbers; the frame is empty if the results do not suffice or have too many networks."""
        n_networks = len(results.accuracies)
        if n_networks < self.min_networks or (self.max_networks is not None and n_networks > self.max_networks):
            return pd.DataFrame()
        return self.compute(results)

    @property
    def requirement(self) -> str:
        """Results that the figure needs, including the number of networks."""
        if self.max_networks is not None:
            return f"{self.required_results}, and at most {self.max_networks} networks"
        minimum = f", and at least {self.min_networks} networks" if self.min_networks > 1 else ""
        return f"{self.required_results}{minimum}"

    @property
    def description(self) -> str:
        """Caption, with the weighting of means and the paper's corresponding figures."""
        weighting_note = f" {MEAN_NOTE}" if self.shows_means else ""
        source_note = f" After {self.source} of Jung et al., ICLR 2023." if self.source else ""
        return f"{self.caption}{weighting_note}{source_note}"


_MIN_SUMMARISED_NETWORKS = MAX_NAMED_NETWORKS + 1
"""Minimum number of networks for box plots and rank correlations."""

FIGURES: dict[str, FigureDefinition] = {
    row.name: row
    for row in (
        FigureDefinition(
            "attack-curves",
            "Accuracy over epsilon, network by network",
            "Accuracy of each network over the epsilons of each attack, starting with clean images. Bands are 95% "
            "intervals over images; the dashed line is the accuracy of guessing (chance). If one epsilon is much "
            "larger than the others, epsilons are spaced evenly.",
            "",
            "an attack",
            partial(figure_data.accuracy_curves, kind="attack"),
            variants.draw_accuracy_curves,
            max_networks=MAX_NAMED_NETWORKS,
        ),
        FigureDefinition(
            "corruption-curves",
            "Accuracy over severity, network by network",
            "Accuracy of each network over the severities of each corruption, starting with clean images; bands are "
            "95% intervals over images.",
            "",
            "a corruption",
            partial(figure_data.accuracy_curves, kind="corruption"),
            variants.draw_accuracy_curves,
            max_networks=MAX_NAMED_NETWORKS,
        ),
        FigureDefinition(
            "attacks",
            "Accuracy under attack",
            "Accuracies of the evaluated architectures by attack and epsilon. Boxes span the quartiles. Whiskers end "
            "at the furthest accuracy within 1.5 interquartile ranges of the box, and dots lie beyond (if there are "
            "many, only the furthest are shown). The dashed line is the accuracy of guessing (chance). If a few dots "
            "are far from all boxes, the axis ends before them, and an arrow shows how many architectures lie beyond "
            "its end.",
            "Fig. 2",
            "an attack",
            partial(figure_data.accuracy_boxes, kind="attack"),
            variants.draw_boxes,
            min_networks=_MIN_SUMMARISED_NETWORKS,
        ),
        FigureDefinition(
            "corruptions",
            "Accuracy under corruption",
            "Accuracies of the evaluated architectures by corruption and severity, next to the clean accuracy; boxes "
            "are as in the figure of attacks.",
            "Fig. 4",
            "a corruption",
            partial(figure_data.accuracy_boxes, kind="corruption"),
            variants.draw_boxes,
            min_networks=_MIN_SUMMARISED_NETWORKS,
        ),
        FigureDefinition(
            "rank-correlation",
            "Rank correlation between keys",
            "Kendall's tau-b between the accuracies of the evaluated architectures under each pair of keys. Attacks "
            "are at the epsilon nearest to 1/255 (for norms other than Linf, nearest to 1), and corruptions at the "
            "severity nearest to 3. “–” means that all accuracies under one of the keys are equal.",
            "",
            "two keys",
            figure_data.key_correlations,
            variants.draw_rank_correlation,
            min_networks=_MIN_SUMMARISED_NETWORKS,
        ),
        FigureDefinition(
            "rank-correlation-attacks",
            "Rank correlation between attacks",
            "Kendall's tau-b between clean accuracies and accuracies under every attack at every epsilon.",
            "Fig. 3",
            "an attack at two epsilons or with a clean accuracy",
            figure_data.attack_correlations,
            variants.draw_rank_correlation,
            min_networks=_MIN_SUMMARISED_NETWORKS,
        ),
        FigureDefinition(
            "rank-correlation-datasets",
            "Rank correlation between datasets",
            "Kendall's tau-b between clean accuracies and accuracies under every attack at every epsilon, on all "
            "datasets, over the architectures with both accuracies. The epsilons of each attack are in ascending "
            "order.",
            "Fig. 17",
            "two datasets with clean accuracies or an attack",
            figure_data.dataset_correlations,
            variants.draw_dataset_correlation,
            is_across_datasets=True,
            min_networks=_MIN_SUMMARISED_NETWORKS,
        ),
        FigureDefinition(
            "rank-correlation-corruptions",
            "Rank correlation between corruptions",
            "Kendall's tau-b between clean accuracies and accuracies under every corruption, at one severity.",
            "Fig. 5",
            "two corruptions, or one and a clean accuracy",
            figure_data.corruption_correlations,
            variants.draw_rank_correlation,
            min_networks=_MIN_SUMMARISED_NETWORKS,
        ),
        FigureDefinition(
            "confidence",
            "Confidence",
            "Mean confidence (softmax probability) of an architecture in its prediction, where the prediction is right "
            "and where it is wrong, and in the true class: median over architectures, and range between the quartiles. "
            "AutoAttack (aa_) returns the clean image if it fails. Its curve “where right” therefore describes the "
            "clean images that withstood the attack, which are fewer and more confident at larger ε, whereas fgsm and "
            "pgd perturb all images. If few images are misclassified, “where wrong” is based on these few.",
            "Figs. 13 (bottom) and 15",
            "the measurement `confidence`",
            figure_data.confidence_curves,
            variants.draw_confidence,
        ),
        FigureDefinition(
            "class-confidence",
            "Confidence, class by class",
            "Mean confidence of an architecture in a class, over the images of this class and over the images that are "
            "predicted as this class: median over architectures, and range between the quartiles. Attacks are at the "
            "epsilon nearest to 1/255 (for norms other than Linf, nearest to 1), and corruptions at the severity "
            "nearest to 3.",
            "Fig. 13 (top and middle)",
            "the measurement `confidence`",
            figure_data.class_confidences,
            variants.draw_class_confidences,
        ),
        FigureDefinition(
            "one-class-confidence",
            "Confidence in one class",
            "Mean confidence of an architecture in a single class (class 0) "
            "at all strengths, over the images of this class and over the images that are predicted as this class: "
            "median over architectures, and range between the quartiles. If few images under an attack are predicted "
            "as this class, the confidence over them is based on these few.",
            "Fig. 14",
            "the measurement `confidence`",
            figure_data.one_class_confidence,
            variants.draw_one_class_confidence,
        ),
        FigureDefinition(
            "confusion",
            "Confusion matrices",
            "Confusion matrices, summed over the evaluated architectures. Each row contains the images of a true class "
            "and sums to 100%. Entries below half a percent have no number.",
            "Fig. 16",
            "the measurement `cm`",
            figure_data.confusion_sums,
            variants.draw_confusion,
        ),
        FigureDefinition(
            "clean-vs-robust",
            "Clean against robust accuracy",
            "One point per architecture; the points of cells are coloured by the number of kernel parameters: 9 for "
            "each 3×3 and 1 for each 1×1 convolution that reaches the output. On the dotted line, an attack would "
            "change nothing; the dashed line is the accuracy of guessing (chance). For the mean, the Pareto front is "
            "marked: no other architecture is better in one of the two accuracies and at least as good in the other. "
            "If a few points are far from all others, the axes end before them, and arrows at the border show how many "
            "there are.",
            "Fig. 27 (left)",
            "clean accuracies and an attack",
            partial(figure_data.clean_and_key_accuracies, kind="attack"),
            variants.draw_clean_and_key_accuracies,
            shows_means=True,
        ),
        FigureDefinition(
            "clean-vs-corrupted",
            "Clean against corrupted accuracy",
            "One point per architecture; the points of cells are coloured by the number of kernel parameters.",
            "Fig. 27 (right)",
            "clean accuracies and a corruption",
            partial(figure_data.clean_and_key_accuracies, kind="corruption"),
            variants.draw_clean_and_key_accuracies,
            shows_means=True,
        ),
        FigureDefinition(
            "kernel-parameters",
            "Mean adversarial accuracy by kernel parameters",
            "Mean adversarial accuracies of cells by their number of kernel parameters: 9 for each 3×3 and 1 for each "
            "1×1 convolution that reaches the output. Boxes are as in the figure of attacks; a diamond with its 95% "
            "interval marks the mean over the cells.",
            "Fig. 28",
            "an attack on architectures that are cells",
            figure_data.accuracy_by_kernel_parameters,
            variants.draw_kernel_parameters,
            shows_means=True,
            min_networks=_MIN_SUMMARISED_NETWORKS,
        ),
        FigureDefinition(
            "measure-correlations",
            "Measures as predictors of accuracy",
            "Kendall's tau-b of every measure, and of the numbers of parameters and multiply-accumulates, with the "
            "accuracies under every key and strength, over the architectures that have the measure.",
            "Fig. 6",
            "a measure, such as `jacobian`, and an accuracy of at least eight architectures",
            figure_data.measure_correlations,
            variants.draw_measure_correlations,
        ),
        FigureDefinition(
            "top-cells",
            "The best cells, edge by edge",
            "The operations of the most accurate cells, at most twenty, among all evaluated cells and among cells with "
            "18 kernel parameters. Columns are cells, the best on the left, with the rank above (= marks ties); rows "
            "are edges.",
            "Figs. 7 and 29",
            "an accuracy of architectures that are cells",
            figure_data.top_cells,
            variants.draw_top_cells,
            shows_means=True,
        ),
        FigureDefinition(
            "best-cells",
            "The best cell by each criterion",
            "The number of edges (of six) on which the best cells differ. Among equally accurate cells (“one of 9”), "
            "the cell that is better by the other means is shown (see Terms, Tie).",
            "Fig. 26",
            "an accuracy of architectures that are cells",
            figure_data.best_cells,
            variants.draw_best_cells,
            shows_means=True,
        ),
        FigureDefinition(
            "neighbours",
            "Change in accuracy when one edge is changed",
            "Change of accuracy, in percentage points, if one edge of a best cell is changed. The accuracy of the "
            "changed cell is that of its isomorphism class. A dot marks the cell's own operation; a square is empty if "
            "the class was not evaluated. On the page, pointing at a square shows the 95% interval of the change, "
            "which assumes that the two cells were evaluated on different images.",
            "Fig. 30",
            "architectures that are cells, and accuracies of the best cell and one of its neighbours",
            figure_data.neighbour_changes,
            variants.draw_neighbours,
            shows_means=True,
        ),
    )
}
"""Figures by name, in their order on the page."""


def find_figure(name: str) -> FigureDefinition:
    """Return the figure with this name."""
    if name not in FIGURES:
        raise ConfigError(
            f"Looking up a figure failed: {name!r} is not in `robust201 plot --list`.{did_you_mean(name, FIGURES)}"
        )
    return FIGURES[name]
