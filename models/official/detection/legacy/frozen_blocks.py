"""Translates the predecessor's freeze patterns to names of this project.

The patterns matched TensorFlow 1 names from their start, in which convolutions are numbered in the
order of their creation. To convert any pattern, all names are generated with the block that each
belongs to, and the pattern is matched against them.
"""

import re
from collections.abc import Iterable
from typing import NamedTuple

from tpudet.trainkit.backbones.efficientnet import block_specs
from tpudet.trainkit.backbones.resnet import RESNETS

STEM = "stem"
_RAW_STRING = re.compile(r"""r(['"])(.*)\1""", re.DOTALL)


class Block(NamedTuple):
    """A block of a backbone; the numbers of EfficientNet's run through all stages."""

    stage: int  # from 1
    number: int


class FrozenBlocks(NamedTuple):
    """The blocks that a pattern was meant to freeze."""

    patterns: tuple[str, ...]  # for train.freeze
    blocks: int  # how many blocks they are
    had_effect: bool  # whether the pattern matched anything as it was written
    names_batch_norm: bool  # whether it matched BatchNorm's scale and shift too


def frozen_blocks(pattern: str | None, backbone: str, depth: int) -> FrozenBlocks:
    """Returns the blocks of the backbone whose convolutions a pattern names.

    The quotes of a raw string, which YAML keeps, and a missing scope `backbone/` are ignored: the
    intention counts. `had_effect` tells whether the pattern worked as written.

    Args:
        pattern: `train.frozen_variable_prefix`.
        backbone: "resnet", "efficientnet", or another, whose names are unknown.
        depth: depth of a ResNet, or number of an EfficientNet, 0 to 8.

    Raises:
        ValueError: the pattern is not a regular expression.
    """
    names = _legacy_names(backbone, depth)
    if not pattern or not names:
        return FrozenBlocks((), 0, False, False)
    raw = _RAW_STRING.fullmatch(pattern.strip())
    meant = raw[2] if raw else pattern
    try:
        matcher = re.compile(meant)
    except re.error as error:
        raise ValueError(f"frozen_variable_prefix {pattern}: {error}") from error
    scope = "" if backbone == "resnet" else "backbone/"
    matched = {block for name, block in names.items() if _matches(matcher, name, scope)}
    had_effect = any(re.match(pattern, scope + name) for name in names)
    norm = "batch_normalization" if backbone == "resnet" else "tpu_batch_normalization"
    norms = (re.sub(r"[a-z_]*conv2d(\w*)/\w+", rf"{norm}\1/gamma", name) for name in names)
    names_batch_norm = any(re.match(pattern, scope + name) for name in norms)
    blocks = sorted(block for block in matched if isinstance(block, Block))
    if matched == set(names.values()):
        return FrozenBlocks(("backbone",), len(blocks), had_effect, names_batch_norm)
    stem = (STEM,) if STEM in matched else ()
    patterns = (*stem, *_stage_patterns(blocks, set(names.values())))
    return FrozenBlocks(patterns, len(blocks), had_effect, names_batch_norm)


def _matches(matcher: re.Pattern[str], name: str, scope: str) -> bool:
    return bool(matcher.match(name) or matcher.match(scope + name))


def _legacy_names(backbone: str, depth: int) -> dict[str, Block | str]:
    """Maps the names of the convolutions' kernels, less `backbone/`, to blocks or the stem."""
    if backbone == "resnet":
        kernels = (f"conv2d{f'_{n}' if n else ''}/kernel" for n in range(10_000))
        blocks = _resnet_blocks(depth)
        return {f"resnet{depth}/{kernel}": block for block, kernel in zip(blocks, kernels)}  # noqa: B905
    if backbone != "efficientnet":
        return {}
    scope = f"efficientnet-b{depth}"
    names: dict[str, Block | str] = {f"{scope}/stem/conv2d/kernel": STEM}
    for number, spec in enumerate(block_specs(f"b{depth}")):
        for kernel in ("conv2d/kernel", "conv2d_1/kernel", "depthwise_conv2d/depthwise_kernel"):
            names[f"{scope}/blocks_{number}/{kernel}"] = Block(spec.stage, number)
    return names


def _resnet_blocks(depth: int) -> list[Block | str]:
    """Returns the block of each convolution in order of creation; stages begin with a shortcut."""
    counts, is_bottleneck = RESNETS[depth]
    blocks: list[Block | str] = [STEM]
    for stage, count in enumerate(counts, start=1):
        for block in range(count):
            convolutions = (3 if is_bottleneck else 2) + (block == 0)
            blocks += [Block(stage, block)] * convolutions
    return blocks


def _stage_patterns(blocks: list[Block], known: set[Block | str]) -> list[str]:
    """Returns whole stages by name, else the blocks' numbers as a regular expression."""
    patterns = []
    for stage in sorted({block.stage for block in blocks}):
        numbers = [block.number for block in blocks if block.stage == stage]
        whole = {
            block.number for block in known if isinstance(block, Block) and block.stage == stage
        }
        is_whole = set(numbers) == whole
        some = f"backbone/stage{stage}/block({number_pattern(numbers)})/"
        patterns.append(f"stage{stage}" if is_whole else some)
    return patterns


def number_pattern(numbers: Iterable[int]) -> str:
    """Returns a regular expression for exactly these numbers: 0 to 14 give `[0-9]|1[0-4]`."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        continues = runs and runs[-1][-1] == number - 1 and number % 10
        if continues:
            runs[-1].append(number)
        else:
            runs.append([number])
    return "|".join(
        f"{run[0] // 10 or ''}[{run[0] % 10}-{run[-1] % 10}]" if len(run) > 1 else str(run[0])
        for run in runs
    )
