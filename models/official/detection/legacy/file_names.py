"""Remarks on numbers in a predecessor's file name that differ from its content."""

import re
from collections.abc import Callable

from tpudet.detection.legacy.conversion import AnySettings


def name_remarks(stem: str, settings: AnySettings, frozen_blocks: int) -> list[str]:
    """Returns a remark on each number in the file's name that differs from its content.

    Args:
        stem: the file's name without `.yaml`, e.g. `4.6.1_r50_step_45k_60k_1024_drop_0.9`.
        settings: its content.
        frozen_blocks: number of blocks of the backbone that it means to freeze.
    """
    rest = stem.partition("_")[2]
    remarks = []
    for pattern, what, content in _CHECKS:
        named = re.search(rf"(?:^|_){pattern}(?=_|$)", rest)
        if not named:
            continue
        said, found = next(group for group in named.groups() if group), content(settings)
        if said not in found:
            remarks.append(f"the name says {what} {said}, the file {found[0]}; the file counts")
    named = re.search(r"frozen_(\d+)", rest)
    if named and int(named[1]) != frozen_blocks:
        remarks.append(
            f"the name says {named[1]} frozen blocks, the file names {frozen_blocks}; the file "
            "counts"
        )
    return [*remarks, *_drop_remarks(rest, settings)]


def _drop_remarks(rest: str, settings: AnySettings) -> list[str]:
    """Compares the steps at which the rate drops, `45k_90k`; a name may give only the first."""
    named = re.search(r"(?:^|_)(?:step_)?(\d+)k(?:_(\d+)k)?(?=_|$)", rest)
    rate = settings.train.learning_rate
    if not named or rate.type != "step":
        return []
    said = [1000 * int(number) for number in named.groups() if number]
    if said == list(rate.learning_rate_steps):
        return []
    return [
        f"the name says that the learning rate drops at {said}, the file at "
        f"{list(rate.learning_rate_steps)}; the file counts"
    ]


def _sizes(settings: AnySettings) -> list[str]:
    height, width = settings.parser.output_size
    return [f"{height}x{width}", *({str(height)} if height == width else set())]


def _policies(settings: AnySettings) -> list[str]:
    return [settings.parser.policy.removeprefix("v") or "none"]


def _filters(settings: AnySettings) -> list[str]:
    return [str(settings.pyramid.fpn_feat_dims)]


def _keep_probs(settings: AnySettings) -> list[str]:
    keep_prob = settings.nasfpn.dropblock.dropblock_keep_prob
    return ["none" if keep_prob is None else f"{keep_prob:g}"]


# A number in a name, what it is, and the texts that agree with the content.
_CHECKS: tuple[tuple[str, str, Callable[[AnySettings], list[str]]], ...] = (
    (r"(\d{3,4}x\d{3,4}|640|800|1024)", "size", _sizes),
    (r"(?:auto)?aug(?:ment)?_?v?(\d)", "AutoAugment policy", _policies),
    (r"(?:feat(?:ures)?_(\d+)|(\d+)_feat(?!(?:ures)?_\d))", "filters", _filters),
    (r"drop_([\d.]+)", "DropBlock keep_prob", _keep_probs),
    (r"batch_(\d+)", "batch", lambda settings: [str(settings.train.train_batch_size)]),
    (
        r"cosine_(\d+)k",
        "thousands of steps to the cosine's zero",
        lambda settings: [f"{settings.train.learning_rate.total_steps / 1000:g}"],
    ),
)
