"""The sets that scikit-learn ships, which are always there: digits, diabetes and breast cancer.

scikit-learn takes a second to import, which commands that load another set need not wait for: it is imported where
a set is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from discreet.data.dataset import Arrays, split
from discreet.data.scaling import standardised

SPLIT_SEED = 0
"""These sets are always divided alike, a fifth for testing, whatever the seed: results stay comparable."""


@dataclass(frozen=True)
class Shipped:
    """A set that scikit-learn ships.

    Attributes:
        read: reads it; takes whether a table is to be standardised.
        train, test: how many examples each split has.
    """

    read: Callable[[bool], Arrays]
    train: int
    test: int


def _digits(standardise: bool) -> Arrays:
    """1,797 handwritten digits, float32 (count, 1, 8, 8) from 0 to 1, divided by class; never standardised."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    inputs = (np.asarray(images) / 16).astype(np.float32).reshape(-1, 1, 8, 8)
    targets = np.asarray(labels).astype(np.int64)
    train, test = split("digits", targets, 0.2, SPLIT_SEED)
    return Arrays(inputs[train], targets[train], inputs[test], targets[test], tuple("0123456789"))


def _diabetes(standardise: bool) -> Arrays:
    """442 patients of 10 figures each; the target, how far the disease went in a year, is a value from 25 to 346.

    Source: Efron, Hastie, Johnstone, Tibshirani, "Least angle regression", Annals of Statistics 2004.
    """
    from sklearn.datasets import load_diabetes

    # Not as scikit-learn scales them, which takes all patients together, those for testing too.
    features, targets = load_diabetes(return_X_y=True, scaled=False)
    return _table("diabetes", features, np.asarray(targets, dtype=np.float64)[:, None], None, standardise)


def _breast_cancer(standardise: bool) -> Arrays:
    """569 tumours, 30 figures of the nuclei of their cells each; 212 are malignant. Divided by class.

    Source: Street, Wolberg, Mangasarian, "Nuclear feature extraction for breast tumor diagnosis", 1993.
    """
    from sklearn.datasets import load_breast_cancer

    features, labels = load_breast_cancer(return_X_y=True)
    targets = np.asarray(labels).astype(np.int64)
    return _table("breast-cancer", features, targets, ("malignant", "benign"), standardise)


def _table(
    name: str, features: Any, targets: NDArray[Any], classes: tuple[str, ...] | None, standardise: bool
) -> Arrays:
    """A table divided and, if asked for, scaled; so are the targets of a regression."""
    features = np.asarray(features, dtype=np.float64)
    kept, held_out = split(name, targets, 0.2, SPLIT_SEED)
    train, test = features[kept], features[held_out]
    learnt, wanted = targets[kept], targets[held_out]
    scaling = None
    if standardise:
        train, test, _ = standardised(train, test)
    if standardise and classes is None:
        learnt, wanted, scaling = standardised(learnt, wanted)
    kind = np.float32 if classes is None else np.int64
    return Arrays(
        train.astype(np.float32),
        learnt.astype(kind),
        test.astype(np.float32),
        wanted.astype(kind),
        classes,
        target_scaling=scaling,
    )


SHIPPED: Mapping[str, Shipped] = {
    "digits": Shipped(_digits, 1437, 360),
    "diabetes": Shipped(_diabetes, 353, 89),
    "breast-cancer": Shipped(_breast_cancer, 455, 114),
}
"""The sets by name."""
