"""SE-ResNeXt 32x4d (Hu et al., arXiv 1709.01507; Xie et al., 1611.05431) as a feature extractor."""

import functools

from tpudet.trainkit.backbones.batch_norm import MakeNorm
from tpudet.trainkit.backbones.layers import ConvNorm
from tpudet.trainkit.backbones.residual import ResidualBlock, ResidualNetwork, bottleneck_convs

# By depth: blocks of each stage.
SERESNEXTS = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3)}
_GROUPS = 32
_EXPANSION = 2  # output channels of a block per channel of its grouped convolution
_SQUEEZE_RATIO = 16  # output channels of a block per channel between squeeze and excitation


class SEResNeXt(ResidualNetwork):
    """Maps images [B, H, W, 3] to features of levels 2 to `max_level` (strides 4 to 32).

    A ResNet of bottlenecks whose 3x3 convolution has the stride and twice the channels in 32
    groups, with squeeze and excitation before the shortcut is added.

    Args:
        depth: 50 or 101.
        max_level: as `ResidualNetwork.max_level`.
        gradient_checkpointing: as `ResidualNetwork.gradient_checkpointing`.
        make_norm: makes each `BatchNorm` with the network's settings.
        name: name of the layer, the root of its variables' paths.

    Raises:
        ValueError: an unknown depth.
    """

    def __init__(
        self,
        *,
        depth: int,
        max_level: int = 5,
        gradient_checkpointing: bool = False,
        make_norm: MakeNorm,
        name: str = "backbone",
    ):
        if depth not in SERESNEXTS:
            raise ValueError(f"SE-ResNeXt depth is {depth}; choose one of {sorted(SERESNEXTS)}.")
        make = functools.partial(ConvNorm, make_norm=make_norm, explicit_padding=True)

        def block(stage: int, index: int) -> ResidualBlock:
            filters, strides = 256 * 2 ** (stage - 1), 2 if stage > 1 and index == 0 else 1
            return ResidualBlock(
                convs=bottleneck_convs(
                    make,
                    width=filters // _EXPANSION,
                    filters=filters,
                    strides=strides,
                    groups=_GROUPS,
                ),
                shortcut=make(filters, 1, strides=strides, name="shortcut") if index == 0 else None,
                squeezed=filters // _SQUEEZE_RATIO,
                name=f"block{index}",
            )

        super().__init__(
            stem=make(64, 7, strides=2, activation="relu", name="conv"),
            blocks_per_stage=SERESNEXTS[depth],
            block=block,
            max_level=max_level,
            symmetric_pooling=False,
            gradient_checkpointing=gradient_checkpointing,
            name=name,
        )
