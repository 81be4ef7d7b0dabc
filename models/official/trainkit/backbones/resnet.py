"""ResNet (He et al., arXiv 1512.03385) and ResNeXt (Xie et al., 1611.05431): image to features."""

import functools
from collections.abc import Callable
from typing import Literal

import keras

from tpudet.trainkit.backbones.batch_norm import MakeNorm
from tpudet.trainkit.backbones.layers import ConvNorm
from tpudet.trainkit.backbones.residual import (
    ResidualBlock,
    ResidualNetwork,
    basic_convs,
    bottleneck_convs,
)

# By depth: (blocks of each stage, whether they are bottlenecks).
RESNETS = {
    18: ((2, 2, 2, 2), False),
    34: ((3, 4, 6, 3), False),
    50: ((3, 4, 6, 3), True),
    101: ((3, 4, 23, 3), True),
    152: ((3, 8, 36, 3), True),
    200: ((3, 24, 36, 3), True),
}
_EXPANSION = 4  # output channels of a bottleneck per channel of its 3x3 convolution
_DROP_BLOCK_STAGES = (3, 4)  # where the DropBlock paper finds it to help


class ResNet(ResidualNetwork):
    """Maps images [B, H, W, 3] to features of levels 2 to `max_level` (strides 4 to 32).

    Args:
        depth: 18, 34, 50, 101, 152 or 200.
        groups: groups of the 3x3 convolution of a bottleneck, as 32 in ResNeXt 32x4d.
        group_width: channels of each in the first stage, as 4 there; they double with every stage.
        style: framework whose weights fit. "tensorflow": a bottleneck's 3x3 convolution has the
            stride (v1.5), and pooling is padded bottom and right first. "torch": the same, padded
            equally on all sides. "keras": the first 1x1 has the stride, as in the paper; padded
            equally on all sides.
        drop_block: makes a `DropBlock` from a seed and a name, for each normalisation and each
            shortcut of stages 3 and 4, at one rate. tensorflow/tpu's classifiers drop a quarter as
            much in stage 3, and its detectors drop in all stages.
        max_level: as `ResidualNetwork.max_level`.
        gradient_checkpointing: as `ResidualNetwork.gradient_checkpointing`.
        make_norm: makes each `BatchNorm` with the network's settings.
        seed: seed from which those of all `DropBlock`s follow.
        name: name of the layer, the root of its variables' paths.

    Raises:
        ValueError: an unknown depth.
    """

    def __init__(
        self,
        *,
        depth: int,
        groups: int = 1,
        group_width: int = 64,
        style: Literal["tensorflow", "torch", "keras"] = "tensorflow",
        drop_block: Callable[..., keras.Layer] | None = None,
        max_level: int = 5,
        gradient_checkpointing: bool = False,
        make_norm: MakeNorm,
        seed: int = 0,
        name: str = "backbone",
    ):
        if depth not in RESNETS:
            raise ValueError(f"ResNet depth is {depth}; choose one of {sorted(RESNETS)}.")
        make = functools.partial(ConvNorm, make_norm=make_norm, explicit_padding=True)
        blocks_per_stage, bottlenecks = RESNETS[depth]

        def block(stage: int, index: int) -> ResidualBlock:
            filters, strides = 64 * 2 ** (stage - 1), 2 if stage > 1 and index == 0 else 1
            if bottlenecks:
                width, filters = filters * groups * group_width // 64, filters * _EXPANSION
                convs = bottleneck_convs(
                    make,
                    width=width,
                    filters=filters,
                    strides=strides,
                    groups=groups,
                    strides_first=style == "keras",
                )
            else:
                convs = basic_convs(make, filters=filters, strides=strides)
            projects = index == 0 and (bottlenecks or stage > 1)
            return ResidualBlock(
                convs=convs,
                shortcut=make(filters, 1, strides=strides, name="shortcut") if projects else None,
                drop_block=drop_block if stage in _DROP_BLOCK_STAGES else None,
                seed=seed + 1000 * stage + 10 * index,  # a block takes at most four seeds
                name=f"block{index}",
            )

        super().__init__(
            stem=make(64, 7, strides=2, activation="relu", name="conv"),
            blocks_per_stage=blocks_per_stage,
            block=block,
            max_level=max_level,
            symmetric_pooling=style != "tensorflow",
            gradient_checkpointing=gradient_checkpointing,
            name=name,
        )
        self.style = style  # compared with what loaded weights expect
