"""Stratified folds: the reference implementation, and counts checked by hand."""

import numpy as np
import pandas as pd
import pytest
from iterstrat.ml_stratifiers import MultilabelStratifiedKFold

from tpudet.detection.preparation.records.stratification import assign_folds, assign_fractions
from tpudet.trainkit.errors import UserError


def random_boxes(num_images: int, num_classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Box images and box classes; class k is in about every (k + 2)th image, some boxes double."""
    rng = np.random.default_rng(3)
    labels = rng.random((num_images, num_classes)) < 1 / np.arange(2, num_classes + 2)
    images, classes = np.nonzero(np.repeat(labels, 2, axis=0))
    return images // 2, classes


def spread(shares: np.ndarray, images: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """[shares, classes]: distinct images of each class in each share."""
    pairs = pd.DataFrame({"image": images, "class": classes}).drop_duplicates()
    return pd.crosstab(shares[pairs["image"]], pairs["class"]).to_numpy()


def test_twenty_images_by_hand() -> None:
    # Images 0..9 hold class 4, 10..14 class 9, 15..19 nothing: two, one and one for each fold.
    images, classes = np.arange(15), np.repeat([4, 9], [10, 5])
    folds = assign_folds(20, images, classes, num_folds=5, seed=1)
    assert spread(folds, images, classes).tolist() == [[2, 1]] * 5
    assert np.bincount(folds[15:]).tolist() == [1] * 5


def test_folds_are_those_of_the_scikit_learn_splitter() -> None:
    images, classes = random_boxes(400, 12)
    labels = np.zeros((400, 12), int)
    labels[images, classes] = 1
    splitter = MultilabelStratifiedKFold(n_splits=5, shuffle=True, random_state=777)
    folds = assign_folds(400, images, classes, num_folds=5, seed=777)
    for fold, (_, own) in enumerate(splitter.split(np.zeros(400), labels)):
        np.testing.assert_array_equal(np.flatnonzero(folds == fold), own)


def test_numbers_of_classes_do_not_matter_but_their_order_and_the_seed() -> None:
    images, classes = random_boxes(400, 12)
    folds = assign_folds(400, images, classes, num_folds=4, seed=777)
    np.testing.assert_array_equal(
        folds, assign_folds(400, images, classes * 7 + 1, num_folds=4, seed=777)
    )
    shuffled = np.random.default_rng(0).permutation(len(images))
    again = assign_folds(400, images[shuffled], classes[shuffled], num_folds=4, seed=777)
    np.testing.assert_array_equal(folds, again)
    assert (folds != assign_folds(400, images, classes, num_folds=4, seed=1)).any()


def test_shares_of_different_size() -> None:
    images, classes = random_boxes(2000, 12)
    shares = assign_fractions(2000, images, classes, fractions=(0.8, 0.15, 0.05), seed=5)
    sizes = np.bincount(shares)
    assert abs(sizes - [1600, 300, 100]).max() <= 2
    counts = spread(shares, images, classes)
    wanted = np.outer([0.8, 0.15, 0.05], counts.sum(axis=0))
    assert abs(counts - wanted).max() <= 2


@pytest.mark.parametrize("fractions", [(0.5, 0.4), (1.2, -0.2), (0.5, 0.5, 0.0)])
def test_shares_must_add_up_to_one(fractions: tuple[float, ...]) -> None:
    with pytest.raises(UserError, match="add up to 1"):
        assign_fractions(9, np.zeros(1, int), np.zeros(1, int), fractions=fractions, seed=777)
