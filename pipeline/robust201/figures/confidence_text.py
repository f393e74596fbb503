"""Confidences taken out of the text of a JSON value, without making numbers of those that no figure shows.

Of the 20,002 numbers a strength of CIFAR-100, figures need 102: the diagonal of `label` and `prediction`. To find those
by the brackets and commas around them takes a fifth of the time of parsing all.
"""

from typing import NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from robust201.reader.json_index import find_brackets
from robust201.reader.value_checks import are_fractions, make_array


class TextConfidences(NamedTuple):
    """What was found in the text of one architecture's confidences.

    Attributes:
        true: (S, C) float64, by strength and class the mean confidence of a class's images in it; NaN for no image.
        prediction: (S, 2) float64, the mean confidence in the predicted class where it is right and where it is wrong.
    """

    true: NDArray[np.float64]
    prediction: NDArray[np.float64]


def find_confidences(text: bytes, *, listed: bool) -> TextConfidences | None:
    """Find the numbers that figures show in the text of a value of ``"confidence"``.

    Args:
        text: an object with `label`, `argmax` and `prediction` in this order, or a list of them.
        listed: whether it must be a list, one object a strength; else it must be one object.

    Returns:
        The numbers; None where the text is of any other form, and must be parsed to say what it is.
    """
    data = np.frombuffer(text, np.uint8)
    places = find_brackets(data)
    brackets = data[places].tobytes()
    n_strengths = brackets.count(b"{")
    if listed:
        places, brackets = places[1:-1], brackets[1:-1] if brackets[:1] + brackets[-1:] == b"[]" else b""
    per_strength, uneven = divmod(len(brackets), max(n_strengths, 1))
    n_classes, rest = divmod(per_strength - 8, 4)
    if uneven or rest or n_classes < 1 or (n_strengths != 1 and not listed):
        return None
    rows = b"[" + b"[]" * n_classes + b"]"
    if brackets != (b"{" + 2 * rows + b"[]}") * n_strengths:
        return None
    found = [_take(text, data, own, n_classes) for own in places.reshape(n_strengths, per_strength)]
    pairs = [pair for pair in found if pair is not None]
    if len(pairs) < n_strengths:
        return None
    return TextConfidences(np.array([true for true, _ in pairs]), np.array([prediction for _, prediction in pairs]))


def _take(
    text: bytes, data: NDArray[np.uint8], places: NDArray[np.int64], n_classes: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    """Take the diagonal and the prediction of one strength, whose brackets are at these places."""
    label_end, argmax_end = 2 + 2 * n_classes, 4 + 4 * n_classes
    gaps = ((0, 1), (label_end, label_end + 1), (argmax_end, argmax_end + 1))
    names = [b"".join(text[places[before] + 1 : places[after]].split()) for before, after in gaps]
    if names != [b'"label":', b',"argmax":', b',"prediction":']:
        return None
    opens, closes = places[2:label_end:2], places[3 : label_end + 1 : 2]
    start = int(places[1])
    commas = np.flatnonzero(data[start : places[label_end]] == ord(",")) + start
    first = np.searchsorted(commas, opens)
    if (np.searchsorted(commas, closes) - first != n_classes - 1).any():
        return None
    # Entry r of row r lies between the commas r - 1 and r of the row, of which the first and last are its brackets.
    order = np.arange(n_classes)
    begins, ends = opens.copy(), closes.copy()
    begins[1:] = commas[(first + order - 1)[1:]]
    ends[:-1] = commas[(first + order)[:-1]]
    entries = [text[begin + 1 : end] for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)]
    try:
        true = make_array(orjson.loads(b"[" + b",".join(entries) + b"]"), missing_ok=True)
        prediction = make_array(
            orjson.loads(text[places[argmax_end + 1] : places[argmax_end + 2] + 1]), missing_ok=True
        )
    except ValueError:
        return None
    if true is None or prediction is None or true.shape != (n_classes,) or prediction.shape != (2,):
        return None
    if not (are_fractions(true) and are_fractions(prediction)):
        return None
    return true.astype(np.float64), prediction.astype(np.float64)
