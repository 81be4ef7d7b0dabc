"""Whose weights a file holds, told by its names, and what such weights expect of the model."""

import difflib
import re
from collections.abc import Callable, Collection
from typing import NamedTuple

from trainkit.weights.errors import WeightsError
from trainkit.weights.name_maps import keras_names, tensorflow_names, torch_names
from trainkit.weights.name_maps.recipes import Recipe, as_is
from trainkit.weights.units import Unit

# What pixels become, (value / 255 - mean) / deviation: red, green, blue.
NORMALIZATIONS = {
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "inception": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    "lite": ((127 / 255, 127 / 255, 127 / 255), (128 / 255, 128 / 255, 128 / 255)),
    # Caffe's order is blue, green, red: the first kernel is turned round when it is loaded.
    "caffe": ((123.68 / 255, 116.779 / 255, 103.939 / 255), (1 / 255, 1 / 255, 1 / 255)),
}


class Family(NamedTuple):
    """A system's backbones, and what their weights expect; None: as the model is."""

    name: str
    normalization: str | None  # a key of NORMALIZATIONS
    style: str | None  # of strides and padding: "tensorflow", "torch" or "keras"
    batch_norm_epsilon: float | None


NameMap = Callable[[Unit, str, Collection[str]], Recipe]


class Recognized(NamedTuple):
    """A family, where in the file its backbone is, and how it names our variables."""

    family: Family
    prefix: str  # of the backbone's names
    name_map: NameMap


class _Signature(NamedTuple):
    family: Family
    name_map: NameMap
    names: tuple[str, ...]  # all of them are in the file, behind one prefix
    path: str = ""  # a pattern that the file's path must match
    besides: str = ""  # a pattern that some name in the file must match


def _own(unit: Unit, part: str, names: Collection[str]) -> Recipe:
    return as_is(f"{unit.path}/{part}")


OWN = Family("this project", None, None, None)

# The first that fits counts. PyTorch's tf_efficientnet are TensorFlow's weights under timm's names:
# only the file's own name, where it has kept it, tells them apart.
_SIGNATURES = (
    _Signature(OWN, _own, ("backbone/stem/conv/kernel",)),
    _Signature(
        Family("efficientnet-pytorch", "imagenet", "tensorflow", 1e-3),
        torch_names.efficientnet_pytorch,
        ("_conv_stem.weight", "_blocks.0._se_reduce.weight"),
    ),
    _Signature(
        Family("efficientnet-lite-pytorch", "lite", "tensorflow", 1e-3),
        torch_names.efficientnet_pytorch,
        ("_conv_stem.weight", "_blocks.0._depthwise_conv.weight"),
    ),
    *(
        _Signature(
            Family(name, normalization, style, epsilon),
            torch_names.timm_efficientnet,
            ("conv_stem.weight", "blocks.0.0.conv_dw.weight"),
            path=path,
        )
        for name, normalization, style, epsilon, path in (
            ("timm tf_efficientnet_lite", "inception", "tensorflow", 1e-3, r"tf_efficientnet_lite"),
            ("timm tf_efficientnet AdvProp", "inception", "tensorflow", 1e-3, r"tf_.*_b\d[._]ap"),
            ("timm tf_efficientnet", "imagenet", "tensorflow", 1e-3, r"tf_efficientnet"),
            ("timm EfficientNet", "imagenet", "torch", 1e-5, ""),
        )
    ),
    *(
        _Signature(
            Family("torchvision EfficientNet", "imagenet", "torch", epsilon),
            torch_names.torchvision_efficientnet,
            ("features.0.0.weight", "features.1.0.block.0.0.weight", *more),
        )
        # b5 to b7, whose last stage has three blocks or more, have another epsilon.
        for epsilon, more in ((1e-3, ("features.7.2.block.0.0.weight",)), (1e-5, ()))
    ),
    _Signature(
        Family("PyTorch ResNet (torchvision, timm)", "imagenet", "torch", 1e-5),
        torch_names.resnet,
        ("conv1.weight", "bn1.weight", "layer1.0.conv1.weight", "layer1.0.bn1.weight"),
    ),
    _Signature(
        Family("keras.applications EfficientNet", "imagenet", "tensorflow", 1e-3),
        keras_names.efficientnet,
        ("stem_conv/kernel", "block1a_project_conv/kernel"),
    ),
    _Signature(
        Family("keras.applications ResNet", "caffe", "keras", 1.001e-5),
        keras_names.resnet,
        ("conv1_conv/kernel", "conv1_bn/gamma", "conv2_block1_1_conv/kernel"),
    ),
    _Signature(
        Family("TensorFlow EfficientNet", "imagenet", "tensorflow", 1e-3),
        tensorflow_names.efficientnet,
        ("stem/conv2d/kernel", "blocks_0/conv2d/kernel", "blocks_0/se/conv2d/kernel"),
    ),
    _Signature(
        Family("TensorFlow EfficientNet-lite", "lite", "tensorflow", 1e-3),
        tensorflow_names.efficientnet,
        ("stem/conv2d/kernel", "blocks_0/conv2d/kernel"),
    ),
    *(
        _Signature(
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


def recognize(names: Collection[str], *, prefix: str = "", path: str = "") -> Recognized:
    """Tells whose backbone a file holds.

    Args:
        names: of the tensors in the file.
        prefix: only names that begin so count; the backbone's own prefix is found behind it.
        path: of the file. timm's `tf_efficientnet` files differ from its others in nothing else.

    Raises:
        WeightsError: no name begins with the prefix, or the names are of no known system.
    """
    inside = [name for name in names if name.startswith(prefix)]
    if not inside:
        near = difflib.get_close_matches(prefix, names, n=3, cutoff=0.0)
        raise WeightsError(
            f"No name in the weights begins with the prefix {prefix!r}; there are "
            f"{len(names)}, for example {', '.join(near) or 'none'}."
        )
    for signature in _SIGNATURES:
        if not re.search(signature.path, path):
            continue
        if signature.besides and not any(re.search(signature.besides, name) for name in inside):
            continue
        found = _common_prefix(signature.names, inside)
        if found is not None:
            return Recognized(signature.family, found, signature.name_map)
    systems = dict.fromkeys(signature.family.name for signature in _SIGNATURES)
    raise WeightsError(
        f"The names in the weights are of no backbone that is known here: {len(inside)} names, "
        f"for example {', '.join(sorted(inside)[:5])}. Known are {', '.join(systems)}."
    )


def _common_prefix(wanted: tuple[str, ...], names: Collection[str]) -> str | None:
    """The shortest prefix behind which all wanted names are found."""
    first, *others = wanted
    stored = set(names)
    prefixes = [name.removesuffix(first) for name in names if name.endswith(first)]
    for prefix in sorted(prefixes, key=len):
        if re.search(r"(^|[/.])$", prefix) and all(prefix + name in stored for name in others):
            return prefix
    return None


def expectations(
    family: Family,
    *,
    normalization: str | None,
    style: str | None,
    batch_norm_epsilon: float | None,
) -> tuple[str, ...]:
    """Says in sentences where a model is not what the weights expect.

    Args:
        family: Of the weights.
        normalization: Of the model's pixels, a key of NORMALIZATIONS; None: not known.
        style: Of the model's strides and padding; None: it has only one.
        batch_norm_epsilon: Of the model's backbone.
    """
    pairs = (
        ("model.normalization", normalization, family.normalization),
        ("model.backbone.style", style, family.style),
        ("model.backbone.batch_norm.epsilon", batch_norm_epsilon, family.batch_norm_epsilon),
    )
    return tuple(
        f"{key} is {has}; weights of {family.name} expect {wants}."
        for key, has, wants in pairs
        if has is not None and wants is not None and has != wants
    )
