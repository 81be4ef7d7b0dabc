"""Balancing: decides how often each image is written, so that rare classes are seen enough."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tpudet.detection.preparation.sources.annotations import distinct_pairs
from tpudet.trainkit.class_list import ClassEntry
from tpudet.trainkit.errors import UserError


class BalancePlan(NamedTuple):
    """Number of copies of each image, and the resulting class counts.

    The count of a class is the number of images with at least one box of it, copies included.
    """

    copies: np.ndarray  # [images] int64, from 1
    shortfalls: dict[int, int]  # images reached by class index, if below the minimum
    images_before: np.ndarray  # [C] int64, every image written once
    images_after: np.ndarray  # [C] int64


def plan_copies(
    num_images: int,
    box_images: np.ndarray,
    box_classes: np.ndarray,
    *,
    num_classes: int,
    min_images_per_class: int,
    max_copies: int | None,
    seed: int,
) -> BalancePlan:
    """Decides how often each image is written, so that every class is in enough images.

    Every image belongs to the group of its least frequent class, by images; on ties the lower index
    counts as rarer. Classes are processed rarest first. A class needs the minimum minus the copies
    of its images in rarer groups. If its group has that many images or more, each is written once;
    otherwise the group is copied as evenly as possible, and a random choice of its images once
    more, so that the minimum is reached exactly. No later group contains the class.

    If the group is too small for that even with `max_copies`, or empty, images of the class in
    rarer groups are copied further, the least copied first; other classes in these images then
    exceed the minimum. What is still missing is a shortfall.

    The result does not depend on the order of the boxes.

    Args:
        num_images: number of images; those without boxes are written once.
        box_images: [boxes] image of each box, 0..num_images - 1, in any order.
        box_classes: [boxes] class index of each box, 0..num_classes - 1 (class id less one).
        num_classes: C.
        min_images_per_class: 0 writes each image once.
        max_copies: upper limit per image, from 1; None: no limit.
        seed: of the random choices.
    """
    images, classes = distinct_pairs(box_images, box_classes)
    before = np.bincount(classes, minlength=num_classes)
    copies = np.ones(num_images, np.int64)
    if min_images_per_class > 0:
        rarest_first = np.argsort(before, kind="stable")
        by_class = np.argsort(classes, kind="stable")
        holders = np.split(images[by_class], np.cumsum(before)[:-1])
        ranks = np.argsort(rarest_first)
        group_ranks = np.full(num_images, num_classes)
        np.minimum.at(group_ranks, images, ranks[classes])
        rng = np.random.default_rng(seed)
        limit = min_images_per_class if max_copies is None else max_copies
        for rank, index in enumerate(rarest_first):
            own = holders[index][group_ranks[holders[index]] == rank]
            missing = min_images_per_class - copies[holders[index]].sum()
            for candidates in (own, holders[index]):
                if missing > 0:
                    missing -= _copy_evenly(copies, candidates, missing, limit, rng)
    after = np.bincount(classes, weights=copies[images], minlength=num_classes).astype(np.int64)
    short = np.flatnonzero(after < min_images_per_class)
    shortfalls = {int(index): int(after[index]) for index in short}
    return BalancePlan(copies, shortfalls, before, after)


def _copy_evenly(
    copies: np.ndarray, candidates: np.ndarray, amount: int, limit: int, rng: np.random.Generator
) -> int:
    """Adds up to `amount` copies to the candidates, least copied first; returns how many."""
    present = copies[candidates]
    low, high = 0, limit  # `low` becomes the highest level that all candidates can be raised to
    while low < high:
        middle = (low + high + 1) // 2
        if np.maximum(middle - present, 0).sum() <= amount:
            low = middle
        else:
            high = middle - 1
    raised = np.maximum(present, low)
    added = int((raised - present).sum())
    if low < limit:
        level = np.flatnonzero(raised == low)  # more images than copies left
        raised[rng.choice(level, amount - added, replace=False)] += 1
        added = amount
    copies[candidates] = raised
    return added


def check_balance(min_images_per_class: int, max_copies: int | None, splits: Sequence[str]) -> None:
    """Checks the options of balancing.

    Raises:
        UserError: a limit of copies without a minimum of images, or no split to train on.
    """
    if max_copies is not None and min_images_per_class == 0:
        raise UserError(
            f"--max_copies {max_copies} limits copies, but without a minimum of images per class "
            "nothing is copied: set that too, or leave --max_copies out."
        )
    if min_images_per_class > 0 and "train" not in splits:
        raise UserError(
            f"A minimum of {min_images_per_class} images per class is for the split train only, "
            f"not for {', '.join(splits)}: copies would distort an evaluation."
        )


def summarize_copies(balance: BalancePlan, classes: Sequence[ClassEntry]) -> dict[str, Any]:
    """Returns a short summary of the plan for the manifest."""
    return {
        "images": len(balance.copies),
        "records": int(balance.copies.sum()),
        "most_copies": int(balance.copies.max(initial=0)),
        "shortfalls": {classes[k].name: reached for k, reached in balance.shortfalls.items()},
    }


def format_imbalance(
    balance: BalancePlan, classes: Sequence[ClassEntry], *, with_table: bool
) -> str:
    """Describes the imbalance before and after, and shortfalls; optionally in every class."""
    names = [entry.name for entry in classes]
    lines = [
        f"images per class before: {_spread(balance.images_before, names)}",
        f"images per class after:  {_spread(balance.images_after, names)}",
        f"images: {len(balance.copies)}, written: {balance.copies.sum()}, "
        f"each at most {balance.copies.max(initial=0)} times",
    ]
    if with_table:
        width = max(len(name) for name in ("class", *names))
        lines.append(f"  {'class':{width}} {'before':>9} {'after':>9}")
        for index in np.argsort(balance.images_before, kind="stable"):
            short = "  below the minimum" if index in balance.shortfalls else ""
            counts = f"{balance.images_before[index]:9d} {balance.images_after[index]:9d}"
            lines.append(f"  {names[index]:{width}} {counts}{short}")
    if balance.shortfalls:
        reached = [f"{names[index]} {count}" for index, count in balance.shortfalls.items()]
        lines.append(f"short of the minimum, {len(reached)}: {', '.join(reached)}")
    return "\n".join(lines)


def _spread(counts: np.ndarray, names: Sequence[str]) -> str:
    """Describes the least and most frequent classes; those without images are only counted."""
    held = np.flatnonzero(counts)
    if held.size == 0:
        return "no class has an image"
    least, most = int(held[np.argmin(counts[held])]), int(np.argmax(counts))
    absent = len(counts) - held.size
    more = f"; {absent} classes have no images" if absent else ""
    return (
        f"least {counts[least]} ({names[least]}), most {counts[most]} ({names[most]}), "
        f"ratio {counts[most] / counts[least]:.1f}{more}"
    )
