"""The words of figures for keys, strengths and datasets: one table; what is not in it is shown as it is."""

from robust201.core.records import CLEAN_STRENGTH
from robust201.reader.result_files import kind_of, row_of

KEY_LABELS = {
    "clean": "Clean",
    "aa_apgd-ce": "APGD-CE",
    "aa_apgd-ce_l2": "APGD-CE, L2",
    "aa_apgd-ce_l1": "APGD-CE, L1",
    "aa_apgd-dlr": "APGD-DLR",
    "aa_apgd-dlr_l2": "APGD-DLR, L2",
    "aa_apgd-dlr_l1": "APGD-DLR, L1",
    "aa_apgd-t": "APGD-T",
    "aa_apgd-t_l2": "APGD-T, L2",
    "aa_apgd-t_l1": "APGD-T, L1",
    "aa_fab": "FAB",
    "aa_fab_l2": "FAB, L2",
    "aa_fab_l1": "FAB, L1",
    "aa_fab-t": "FAB-T",
    "aa_fab-t_l2": "FAB-T, L2",
    "aa_fab-t_l1": "FAB-T, L1",
    "aa_square": "Square",
    "aa_square_l2": "Square, L2",
    "aa_square_l1": "Square, L1",
    "aa_standard": "AutoAttack",
    "aa_standard_l2": "AutoAttack, L2",
    "aa_standard_l1": "AutoAttack, L1",
    "fgsm": "FGSM",
    "pgd": "PGD",
    "pgd_linf7": "PGD-7",
    "pgd_l2": "PGD-L2",
    "grid775": "Grid 775",
    "grid135": "Grid 135",
    "grid775_10": "Grid 775, 10°",
    "rot30": "Rotation 30°",
    "rot10": "Rotation 10°",
    "gaussian_noise": "Gaussian noise",
    "impulse_noise": "Impulse noise",
    "shot_noise": "Shot noise",
    "defocus_blur": "Defocus blur",
    "glass_blur": "Glass blur",
    "motion_blur": "Motion blur",
    "zoom_blur": "Zoom blur",
    "brightness": "Brightness",
    "fog": "Fog",
    "frost": "Frost",
    "snow": "Snow",
    "contrast": "Contrast",
    "elastic_transform": "Elastic transform",
    "jpeg_compression": "JPEG compression",
    "pixelate": "Pixelate",
    "jacobian": "Jacobian",
}
"""By key, in the paper's style."""

DATASET_LABELS = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}


def paper_key(key: str) -> str:
    """Spell a key in the paper's style; unknown ones stay as they are."""
    row = row_of(key)
    return key if row is None else row.key


def key_label(key: str) -> str:
    """Name a key, in either style, for people; one of the user's own that reads like another's name is in quotes."""
    return KEY_LABELS.get(paper_key(key), f"“{key}”" if key in KEY_LABELS.values() else key)


def dataset_label(name: str) -> str:
    """Name a dataset for people."""
    return DATASET_LABELS.get(name, name)


def strength_label(key: str, strength: float) -> str:
    """Write a strength with its unit, such as ``ε = 8/255``, ``ε = 0.5 (L2)`` or ``severity 3``; empty for clean.

    That of a key that is not in the table has no unit: ``strength 3``.
    """
    if strength == CLEAN_STRENGTH:
        return ""
    row = row_of(key)
    if row is not None and row.constraint is not None:
        ball = row.constraint
        return f"ε = {strength:g}/{ball.divisor:g}" if ball.divisor != 1 else f"ε = {strength:g} ({ball.name})"
    return f"severity {strength:g}" if kind_of(key) == "corruption" else f"strength {strength:g}"


def column_label(key: str, strength: float) -> str:
    """Name a key and strength, such as ``PGD, ε = 8/255``."""
    return ", ".join(filter(None, (key_label(key), strength_label(key, strength))))


def measure_label(key: str, measurement: str, strength: float) -> str:
    """Name what is measured, such as ``Jacobian squared norm``, and at which strength if that is not 0."""
    told = measurement.replace("_", " ") if row_of(key) is not None else measurement
    return f"{key_label(key)} {told}" + (f", strength {strength:g}" if strength != CLEAN_STRENGTH else "")
