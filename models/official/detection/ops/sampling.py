"""Draws the anchors and the proposals that a two-stage detector's losses are computed on.

All shapes are static, and the draw depends only on a step number and on each image's record, not
on where in the batch or on which device the image is.
"""

from typing import NamedTuple

import keras
import numpy as np

from tpudet.detection.ops.boxes import box_areas
from tpudet.detection.ops.gather import gather_rows
from tpudet.detection.ops.matching import (
    IGNORED,
    inside_crowds,
    instance_ious,
    mask_invalid_boxes,
)
from tpudet.trainkit.keras_ops import ops
from tpudet.trainkit.record_numbers import mix_shard
from tpudet.trainkit.types import Tensor


class Draw(NamedTuple):
    """Rows drawn from each image's candidates, positives first."""

    rows: Tensor  # [B, S] int32, of the candidates
    positive: Tensor  # [B, S] bool
    valid: Tensor  # [B, S] bool; false where there were too few candidates


class RegionMatches(NamedTuple):
    """The matched class and instance of each region."""

    classes: Tensor  # [B, K] int32: 1..C, 0 for background, -1 for ignored
    instances: Tensor  # [B, K] int32, the instance that the region overlaps most


class SampledRois(NamedTuple):
    """Regions of interest with their ground truth, positives first."""

    boxes: Tensor  # [B, S, 4] float32
    classes: Tensor  # [B, S] int32: 1..C, 0 for background, -1 for an unused slot
    instances: Tensor  # [B, S] int32; read where the class is above 0
    matched_boxes: Tensor  # [B, S, 4] float32, of those instances


def random_ranks(records: Tensor, step: Tensor, *, count: int, stream: int) -> Tensor:
    """Returns pseudo-random numbers [B, count] float32 in [0, 1), the same on every backend.

    Each is a hash of its image's record, the step, the stream and its place: Murmur3's finaliser
    (Austin Appleby, public domain), applied once per part.

    Args:
        records: [B], numbers of the records, int64; or what `mix_shard` makes of them, int32.
        step: [] integer, number of the training step.
        count: numbers per image.
        stream: tells independent draws of one step apart.
    """

    def constant(value: int | np.ndarray) -> Tensor:
        return ops.convert_to_tensor(np.asarray(value, np.uint32))

    def mix(bits: Tensor) -> Tensor:
        for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
            bits = ops.bitwise_xor(bits, ops.bitwise_right_shift(bits, constant(shift)))
            bits = bits * constant(factor)
        return ops.bitwise_xor(bits, ops.bitwise_right_shift(bits, constant(16)))

    if keras.backend.standardize_dtype(records.dtype) == "int64":
        records = mix_shard(records)
    key = mix(ops.cast(step, "uint32") + constant(0x9E3779B9 * (stream + 1) % 2**32))
    key = mix(ops.bitwise_xor(ops.cast(records, "uint32"), key))
    bits = mix(ops.bitwise_xor(key[:, None], constant(np.arange(count))))
    return ops.cast(ops.bitwise_right_shift(bits, constant(8)), "float32") / 2.0**24


def draw_balanced(classes: Tensor, ranks: Tensor, *, count: int, max_positives: int) -> Draw:
    """Draws up to `max_positives` positives, and negatives up to `count` in all.

    Of each kind the candidates of highest rank are drawn (Ren et al., arXiv 1506.01497, section
    3.1.3). Ignored candidates never are.

    Args:
        classes: [B, A] integer: above 0 for a positive, 0 for a negative, -1 for ignored.
        ranks: [B, A] float32, 0 or more.
        count: S, rows to draw per image.
        max_positives: positives among them, at most `count`.
    """
    num_candidates = classes.shape[1]
    positive, negative = classes > 0, classes == 0

    def best(chosen: Tensor, most: int) -> Tensor:
        keys = ops.where(chosen, ranks, -1.0)
        return ops.cast(ops.top_k(keys, min(most, num_candidates))[1], "int32")

    def number(chosen: Tensor, most: Tensor | int) -> Tensor:  # [B, 1]
        found = ops.sum(ops.cast(chosen, "int32"), axis=1, keepdims=True)
        return ops.minimum(found, most)

    positives, negatives = best(positive, max_positives), best(negative, count)
    num_positives = number(positive, max_positives)
    num_valid = num_positives + number(negative, count - num_positives)
    slots = ops.arange(count, dtype="int32")[None]
    is_positive, valid = slots < num_positives, slots < num_valid
    # A place in the two lists put together; unused slots take the first.
    places = ops.where(is_positive, slots, positives.shape[1] + slots - num_positives)
    rows = ops.concatenate([positives, negatives], axis=1)
    return Draw(gather_rows(rows, ops.where(valid, places, 0)), is_positive, valid)


def match_rois(
    rois: Tensor,
    valid: Tensor,
    boxes: Tensor,
    classes: Tensor,
    is_crowd: Tensor,
    *,
    iou_threshold: float,
) -> RegionMatches:
    """Matches each region with the instance that it overlaps most; ties go to the first.

    Padding, boxes without area and boxes with numbers that are not finite never match. A region
    that matches no instance is ignored if it has no area or if crowd boxes cover enough of it.

    Args:
        rois: [B, K, 4].
        valid: [B, K] bool; the others are ignored.
        boxes: [B, N, 4] of the ground truth.
        classes: [B, N] integer, 0 for padding.
        is_crowd: [B, N] bool.
        iou_threshold: IoU from which a region is its instance's; below, it is background.
    """
    boxes, filled = mask_invalid_boxes(boxes, classes)
    shared, iou = instance_ious(boxes, rois, filled & ops.logical_not(is_crowd))
    areas = box_areas(rois)
    instance = ops.cast(ops.argmax(iou, axis=1), "int32")
    positive = valid & (ops.max(iou, axis=1) >= iou_threshold)
    ignored = inside_crowds(shared, areas, filled & is_crowd)
    ignored = ignored | ops.logical_not(valid & (areas > 0))
    found = ops.cast(gather_rows(classes, instance), "int32")
    return RegionMatches(ops.where(positive, found, ops.where(ignored, IGNORED, 0)), instance)


def sample_rois(
    rois: Tensor,
    valid: Tensor,
    boxes: Tensor,
    classes: Tensor,
    is_crowd: Tensor,
    records: Tensor,
    step: Tensor,
    *,
    iou_threshold: float,
    count: int,
    max_positives: int,
) -> SampledRois:
    """Draws the regions to train the second stage on (Girshick, arXiv 1504.08083, section 2.3).

    The boxes of the ground truth are candidates too, so that there are positives from the first
    step on.

    Args:
        rois: [B, K, 4], proposals.
        valid: [B, K] bool.
        boxes: [B, N, 4] of the ground truth.
        classes: [B, N] integer, 0 for padding.
        is_crowd: [B, N] bool.
        records: as of `random_ranks`.
        step: as of `random_ranks`.
        iou_threshold: as of `match_rois`.
        count: S, regions per image.
        max_positives: positives among them.
    """
    usable, filled = mask_invalid_boxes(boxes, classes)
    rois = ops.concatenate([rois, usable], axis=1)
    valid = ops.concatenate([valid, filled & ops.logical_not(is_crowd)], axis=1)
    matched = match_rois(rois, valid, boxes, classes, is_crowd, iou_threshold=iou_threshold)
    ranks = random_ranks(records, step, count=rois.shape[1], stream=1)
    draw = draw_balanced(matched.classes, ranks, count=count, max_positives=max_positives)
    instances = gather_rows(matched.instances, draw.rows)
    return SampledRois(
        boxes=gather_rows(rois, draw.rows),
        classes=ops.where(draw.valid, gather_rows(matched.classes, draw.rows), IGNORED),
        instances=instances,
        matched_boxes=gather_rows(usable, instances),
    )


def rematch_rois(
    rois: SampledRois,
    boxes: Tensor,
    classes: Tensor,
    is_crowd: Tensor,
    *,
    iou_threshold: float,
) -> SampledRois:
    """Returns the same regions, whose boxes have moved, matched to the ground truth again.

    For the later stages of a cascade (Cai and Vasconcelos, arXiv 1712.00726, section 4.2).

    Args:
        rois: of the stage before; unused slots stay unused.
        boxes: [B, N, 4] of the ground truth.
        classes: [B, N] integer, 0 for padding.
        is_crowd: [B, N] bool.
        iou_threshold: as of `match_rois`.
    """
    used = rois.classes != IGNORED
    matched = match_rois(rois.boxes, used, boxes, classes, is_crowd, iou_threshold=iou_threshold)
    return SampledRois(
        boxes=rois.boxes,
        classes=matched.classes,
        instances=matched.instances,
        matched_boxes=gather_rows(mask_invalid_boxes(boxes, classes)[0], matched.instances),
    )
