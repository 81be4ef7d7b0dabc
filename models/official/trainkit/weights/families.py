"""Families of weights: what they expect of the model, and the tensor names that identify them."""

from collections.abc import Callable, Collection
from typing import NamedTuple

from tpudet.trainkit.weights.name_maps import keras_names, tensorflow_names, torch_names
from tpudet.trainkit.weights.name_maps.recipes import PART_PATTERN, Recipe, Unit, as_is

# Pixels become (value / 255 - mean) / deviation; for red, green, blue.
NORMALIZATIONS = {
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "inception": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    "lite": ((127 / 255, 127 / 255, 127 / 255), (128 / 255, 128 / 255, 128 / 255)),
    # Caffe's order is blue, green, red: the first kernel is reversed when it is loaded.
    "caffe": ((123.68 / 255, 116.779 / 255, 103.939 / 255), (1 / 255, 1 / 255, 1 / 255)),
    "caffe2": ((123.675 / 255, 116.28 / 255, 103.53 / 255), (1 / 255, 1 / 255, 1 / 255)),
}


class Family(NamedTuple):
    """Weights of one origin, and the model they expect; None: any."""

    name: str
    normalization: str | None  # a key of NORMALIZATIONS
    style: str | None  # of strides and padding: "tensorflow", "torch" or "keras"
    batch_norm_epsilon: float | None


NameMap = Callable[[Unit, str, Collection[str]], Recipe]


class Signature(NamedTuple):
    """By what the files of a family are told."""

    family: Family
    name_map: NameMap
    names: tuple[str, ...]  # all of them are in the file, behind one prefix
    path: str = ""  # a pattern that the file's path must match
    besides: str = ""  # a pattern that some name in the file must match
    variant: str = ""  # as of `StoredWeights`; empty: any


def _own(unit: Unit, part: str, names: Collection[str]) -> Recipe:
    return as_is(f"{unit.path}/{part}")


# Our own checkpoints: the config.yaml of the run says what they expect.
TPUDET = Family("tpudet", None, None, None)

_TORCH_PART = r".*\.(weight|bias|running_mean|running_var)"
_TENSORFLOW_PART = r".*/(kernel|depthwise_kernel|bias|gamma|beta|moving_mean|moving_variance)"

# Names of the variables in a backbone's blocks, by origin.
BLOCKS: dict[NameMap, str] = {
    _own: PART_PATTERN,
    torch_names.efficientnet_pytorch: r"_blocks\.\d+" + _TORCH_PART,
    torch_names.timm_efficientnet: r"blocks\.\d+" + _TORCH_PART,
    torch_names.torchvision_efficientnet: r"features\.[1-7]\.\d+\.block" + _TORCH_PART,
    torch_names.torchvision_mobilenet: r"\d+\.(block|[01])\b" + _TORCH_PART,
    torch_names.resnet: r"layer\d+" + _TORCH_PART,
    torch_names.caffe_resnet: r"layer\d+" + _TORCH_PART,
    torch_names.detectron2_resnet: r"res\d+" + _TORCH_PART,
    torch_names.detectron2_rgb_resnet: r"res\d+" + _TORCH_PART,
    keras_names.efficientnet: r"block\d+[a-z]_" + _TENSORFLOW_PART,
    keras_names.resnet: r"conv\d+_block\d+_" + _TENSORFLOW_PART,
    # Stems of three convolutions, and norms before them, are of other networks.
    keras_names.kerashub_resnet: r"(conv[2-9]|stack\d+_block\d+|post)_" + _TENSORFLOW_PART,
    tensorflow_names.efficientnet: r"blocks_\d+" + _TENSORFLOW_PART,
}

_MMDETECTION_NECK = r"(^|\.)neck\.lateral_convs\.0\.conv\."

# The first match counts. timm's tf_efficientnet models are TensorFlow's weights under timm's names:
# only the name of the file, if unchanged, tells them apart.
SIGNATURES = (
    Signature(TPUDET, _own, ("backbone/stem/conv/kernel",)),
    *(
        Signature(
            Family(name, normalization, "tensorflow", 1e-3),
            torch_names.efficientnet_pytorch,
            ("_conv_stem.weight", "_blocks.0._se_reduce.weight"),
            path=path,
        )
        for name, normalization, path in (
            ("efficientnet-pytorch AdvProp", "inception", r"adv-efficientnet"),
            ("efficientnet-pytorch", "imagenet", ""),
        )
    ),
    Signature(
        Family("efficientnet-lite-pytorch", "lite", "tensorflow", 1e-3),
        torch_names.efficientnet_pytorch,
        ("_conv_stem.weight", "_blocks.0._depthwise_conv.weight"),
    ),
    *(
        Signature(
            Family(name, normalization, style, epsilon),
            torch_names.timm_efficientnet,
            ("conv_stem.weight", "blocks.0.0.conv_dw.weight"),
            path=path,
        )
        for name, normalization, style, epsilon, path in (
            ("timm tf_efficientnet_lite", "inception", "tensorflow", 1e-3, r"tf_efficientnet_lite"),
            ("timm tf_efficientnet AdvProp", "inception", "tensorflow", 1e-3, r"tf_.*_b\d[._]ap"),
            ("timm tf_efficientnet", "imagenet", "tensorflow", 1e-3, r"tf_efficientnet"),
            ("timm EfficientNet, recipe ra4", "inception", "torch", 1e-5, r"\.ra4_e3600"),
            ("timm EfficientNet", "imagenet", "torch", 1e-5, ""),
        )
    ),
    *(
        Signature(
            Family("torchvision EfficientNet", "imagenet", "torch", epsilon),
            torch_names.torchvision_efficientnet,
            ("features.0.0.weight", "features.1.0.block.0.0.weight", *more),
        )
        # b5 to b7, whose last stage has three blocks or more, have another epsilon.
        for epsilon, more in ((1e-3, ("features.7.2.block.0.0.weight",)), (1e-5, ()))
    ),
    *(
        Signature(
            Family(name, "imagenet", "torch", epsilon),
            torch_names.resnet,
            ("conv1.weight", "bn1.weight", "layer1.0.conv1.weight", "layer1.0.bn1.weight"),
            path=path,
            besides=r"(^|\.)fpn\.inner_blocks\.",
        )
        for name, path, epsilon in (
            # torchvision itself sets the epsilon of these files to 0 when it loads them.
            ("torchvision detector, first COCO weights", r"_resnet50_fpn_coco-", 0.0),
            ("torchvision detector", "", 1e-5),
        )
    ),
    *(
        Signature(
            Family(name, "imagenet", "torch", epsilon),
            torch_names.torchvision_mobilenet,
            ("0.0.weight", "0.1.weight", "1.block.0.0.weight", "4.block.2.fc1.weight"),
            besides=besides,
        )
        for name, epsilon, besides in (
            ("torchvision detector", 1e-5, r"(^|\.)fpn\.inner_blocks\."),
            ("torchvision MobileNetV3", 1e-3, ""),
        )
    ),
    # Only the file's name tells MMDetection's weights of Caffe's ResNet from those of PyTorch's.
    *(
        Signature(
            Family(name, normalization, style, 1e-5),
            name_map,
            ("conv1.weight", "bn1.weight", "layer1.0.conv1.weight", "layer1.0.bn1.weight"),
            path=path,
            besides=besides,
        )
        for name, path, besides, name_map, normalization, style in (
            ("MMDetection, Caffe", r"caffe", "", torch_names.caffe_resnet, "caffe2", "keras"),
            ("MMDetection", "", _MMDETECTION_NECK, torch_names.resnet, "imagenet", "torch"),
        )
    ),
    *(
        Signature(
            Family(name, normalization, style, 1e-5),
            name_map,
            ("stem.conv1.weight", "stem.conv1.norm.weight", "res2.0.conv1.norm.weight"),
            variant=variant,
        )
        for name, variant, name_map, normalization, style in (
            *(
                (f"Detectron2, {variant}", variant, name_map, "imagenet", "torch")
                for variant, name_map in (
                    ("torchvision", torch_names.detectron2_rgb_resnet),
                    ("ResNeXt", torch_names.detectron2_resnet),
                )
            ),
            ("Detectron2", "", torch_names.detectron2_resnet, "caffe2", "keras"),
        )
    ),
    *(
        Signature(
            Family(name, normalization, "torch", 1e-5),
            torch_names.resnet,
            ("conv1.weight", "bn1.weight", "layer1.0.conv1.weight", "layer1.0.bn1.weight"),
            path=path,
        )
        for name, normalization, path in (
            ("timm ResNet, recipe ra4", "inception", r"\.ra4_e3600"),
            ("PyTorch ResNet (torchvision, timm)", "imagenet", ""),
        )
    ),
    Signature(
        Family("keras.applications EfficientNet", "imagenet", "tensorflow", 1e-3),
        keras_names.efficientnet,
        ("stem_conv/kernel", "block1a_project_conv/kernel"),
    ),
    Signature(
        Family("keras.applications ResNet", "caffe", "keras", 1.001e-5),
        keras_names.resnet,
        ("conv1_conv/kernel", "conv1_bn/gamma", "conv2_block1_1_conv/kernel"),
    ),
    Signature(
        Family("KerasHub ResNet", "imagenet", "torch", 1e-5),
        keras_names.kerashub_resnet,
        ("conv1_conv/kernel", "conv1_bn/gamma", "stack0_block0_1_conv/kernel"),
    ),
    Signature(
        Family("TensorFlow EfficientNet", "imagenet", "tensorflow", 1e-3),
        tensorflow_names.efficientnet,
        ("stem/conv2d/kernel", "blocks_0/conv2d/kernel", "blocks_0/se/conv2d/kernel"),
    ),
    Signature(
        Family("TensorFlow EfficientNet-lite", "lite", "tensorflow", 1e-3),
        tensorflow_names.efficientnet,
        ("stem/conv2d/kernel", "blocks_0/conv2d/kernel"),
    ),
    *(
        Signature(
            Family(name, "imagenet", "tensorflow", epsilon),
            tensorflow_names.resnet,
            ("conv2d/kernel", "conv2d_9/kernel", "batch_normalization_9/gamma"),
            besides=besides,
        )
        for name, epsilon, besides in (
            ("tensorflow/tpu detection ResNet", 1e-4, r"(^|/)(fpn|fpn_cells|retinanet)/"),
            ("TensorFlow ResNet", 1e-5, ""),
        )
    ),
)


# The settings that `expectations` compares.
EXPECTED_KEYS = (
    "model.normalization",
    "model.backbone.style",
    "model.backbone.batch_norm.epsilon",
)


def expectations(
    family: Family,
    *,
    normalization: str | None,
    style: str | None,
    batch_norm_epsilon: float | None,
) -> tuple[str, ...]:
    """Returns a sentence for each setting of a model that the weights do not expect.

    Args:
        family: of the weights.
        normalization: of the model's pixels, a key of NORMALIZATIONS; None: not known.
        style: of the model's strides and padding; None if it has no choice.
        batch_norm_epsilon: of the model's backbone.
    """
    has_all = (normalization, style, batch_norm_epsilon)
    wants_all = (family.normalization, family.style, family.batch_norm_epsilon)
    return tuple(
        f"{key} is {has}; weights of {family.name} expect {wants}."
        for key, has, wants in zip(EXPECTED_KEYS, has_all, wants_all, strict=True)
        if has is not None and wants is not None and has != wants
    )
