"""How often images are copied: an example worked by hand, and laws over random data."""

import numpy as np
import pytest

from tpudet.detection.preparation.records.balance import BalancePlan, format_imbalance, plan_copies
from tpudet.trainkit.class_list import ClassEntry

# Ten images, three classes: cat in 2 of them, dog in 4, cow in 5. Image 9 holds nothing.
HELD = {0: ("cat",), 1: ("cat", "dog"), 2: ("dog",), 3: ("dog", "cow"), 4: ("dog",)}
HELD |= {5: ("cow",), 6: ("cow",), 7: ("cow",), 8: ("cow",), 9: ()}
NAMES = ("cow", "dog", "cat")
CLASSES = tuple(ClassEntry(f"/m/{name}", name) for name in NAMES)


def plan(minimum: int, max_copies: int | None = None, seed: int = 0) -> BalancePlan:
    pairs = [(image, NAMES.index(name)) for image, names in HELD.items() for name in names]
    pairs += pairs[:5]  # a second box of a class in an image counts no more
    images, classes = np.array(pairs).T
    return plan_copies(
        10,
        images,
        classes,
        num_classes=3,
        min_images_per_class=minimum,
        max_copies=max_copies,
        seed=seed,
    )


def test_without_a_minimum_every_image_is_written_once() -> None:
    found = plan(0)
    assert found.copies.tolist() == [1] * 10
    assert found.images_before.tolist() == found.images_after.tolist() == [5, 4, 2]
    assert found.shortfalls == {}


@pytest.mark.parametrize("seed", range(5))
def test_the_worked_example(seed: int) -> None:
    """Cats' images 0 and 1 three times each; three dogs come along, and the dogs' own three
    images once each make six; one of these is a cow, so four cow images must make five.
    """
    found = plan(6, seed=seed)
    assert found.copies[:5].tolist() == [3, 3, 1, 1, 1]
    assert sorted(found.copies[5:9]) == [1, 1, 1, 2]
    assert found.copies[9] == 1
    assert found.images_after.tolist() == [6, 6, 6]
    assert found.shortfalls == {}


def test_enough_images_are_not_copied_for_a_class_that_needs_none() -> None:
    """At 3: of the cats one image of two is copied; dogs and cows have more than 3 anyway."""
    found = plan(3)
    assert sorted(found.copies[:2]) == [1, 2]
    assert found.copies[2:].tolist() == [1] * 8
    assert found.images_after.tolist() == [5, 3 + found.copies[1], 3]


def test_the_cap_holds_and_what_is_missing_is_said() -> None:
    """At most twice: 4 cats of 6. Dogs: 2 come with the cats, and 4 of 3 images make 6."""
    found = plan(6, max_copies=2)
    assert found.copies[:2].tolist() == [2, 2]
    assert sorted(found.copies[2:5]) == [1, 1, 2]
    assert found.images_after.tolist() == [6, 6, 4]
    assert found.shortfalls == {NAMES.index("cat"): 4}


@pytest.mark.parametrize("seed", range(12))
def test_a_class_without_images_of_its_own_is_served_by_those_of_rarer_ones(seed: int) -> None:
    """Three classes of three images each, and a fourth that is in one image of each.

    Four images of each class are two images once and one twice. The fourth class is as frequent
    and has the highest index, so no image is its own; where none of its three was drawn, one of
    them is copied once more.
    """
    images = np.array([*range(9), 0, 3, 6])
    classes = np.array([0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3])
    arguments = {"num_classes": 4, "min_images_per_class": 4, "max_copies": None, "seed": seed}
    found = plan_copies(9, images, classes, **arguments)
    assert found.shortfalls == {}
    drawn = found.copies.sum() - 9 == 3
    assert found.images_after[3] == found.copies[[0, 3, 6]].sum()
    if drawn:
        assert found.images_after[:3].tolist() == [4, 4, 4]
        assert found.images_after[3] >= 4
    else:
        assert sorted(found.images_after[:3]) == [4, 4, 5]
        assert found.images_after[3] == 4


def test_a_class_that_no_image_holds_is_a_shortfall() -> None:
    arguments = {"num_classes": 2, "min_images_per_class": 2, "max_copies": None, "seed": 0}
    found = plan_copies(1, np.array([0]), np.array([1]), **arguments)
    assert found.copies.tolist() == [2]
    assert found.shortfalls == {0: 0}


def random_boxes(seed: int) -> tuple[int, int, np.ndarray, np.ndarray]:
    """Classes of very different frequency; each has an image that holds nothing else."""
    rng = np.random.default_rng(seed)
    num_images, num_classes = int(rng.integers(40, 400)), int(rng.integers(2, 15))
    num_boxes = 3 * num_images
    images = rng.integers(num_classes, num_images, num_boxes)
    classes = np.minimum(rng.geometric(0.35, num_boxes) - 1, num_classes - 1)
    alone = np.arange(num_classes)
    return num_images, num_classes, np.append(images, alone), np.append(classes, alone)


@pytest.mark.parametrize("seed", range(25))
def test_the_minimum_is_reached_exactly_or_missed_by_the_cap_alone(seed: int) -> None:
    num_images, num_classes, images, classes = random_boxes(seed)
    holds = np.zeros((num_images, num_classes), bool)
    holds[images, classes] = True
    counts = holds.sum(axis=0)
    order = sorted(range(num_classes), key=lambda index: (counts[index], index))
    groups = [min(np.flatnonzero(row).tolist(), key=order.index, default=-1) for row in holds]
    minimum = 60
    for limit in (None, 8):
        found = plan_copies(
            num_images,
            images,
            classes,
            num_classes=num_classes,
            min_images_per_class=minimum,
            max_copies=limit,
            seed=seed,
        )
        np.testing.assert_array_equal(found.images_before, counts)
        np.testing.assert_array_equal(found.images_after, found.copies @ holds)
        assert found.copies.min() == 1
        assert (found.copies[~holds.any(axis=1)] == 1).all()
        for index in range(num_classes):
            own = np.equal(groups, index)
            once_each = found.copies[holds[:, index] & ~own].sum() + own.sum()
            if limit is None:
                assert found.images_after[index] == max(minimum, once_each)
                assert np.ptp(found.copies[own]) <= 1
            elif index in found.shortfalls:
                assert found.shortfalls[index] == found.images_after[index] < minimum
                assert (found.copies[holds[:, index]] == limit).all()
            else:
                assert found.images_after[index] >= minimum
        if limit is not None:
            assert found.copies.max() <= limit
        else:
            assert found.shortfalls == {}


def test_the_plan_depends_on_the_seed_and_not_on_the_order_of_the_boxes() -> None:
    num_images, num_classes, images, classes = random_boxes(5)
    plans = []
    for seed in (1, 1, 2):
        order = np.random.default_rng(len(plans)).permutation(len(images))
        plans.append(
            plan_copies(
                num_images,
                images[order],
                classes[order],
                num_classes=num_classes,
                min_images_per_class=97,
                max_copies=20,
                seed=seed,
            ).copies.tolist()
        )
    assert plans[0] == plans[1] != plans[2]


def test_the_imbalance_in_words() -> None:
    lines = format_imbalance(plan(6, max_copies=2), CLASSES, with_table=True).splitlines()
    assert lines == [
        "images per class before: least 2 (cat), most 5 (cow), ratio 2.5",
        "images per class after:  least 4 (cat), most 6 (cow), ratio 1.5",
        "images: 10, written: 14, each at most 2 times",
        "  class    before     after",
        "  cat           2         4  below the minimum",
        "  dog           4         6",
        "  cow           5         6",
        "short of the minimum, 1: cat 4",
    ]
