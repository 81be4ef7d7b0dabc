"""Names of a classifier's head in weights of other origins."""

from collections.abc import Collection

import numpy as np

from tpudet.trainkit.weights.name_maps.recipes import Recipe, as_is, from_torch_kernel

# By a name that only this origin has: top convolution, its normalisation, class layer.
_KERAS = {
    "top_conv/kernel": ("top_conv", "top_bn", "predictions"),
    "predictions/kernel": ("", "", "predictions"),
}
_TORCH = {
    "_conv_head.weight": ("_conv_head", "_bn1", "_fc"),  # efficientnet-pytorch and -lite
    "conv_head.weight": ("conv_head", "bn2", "classifier"),  # timm
    "features.8.0.weight": ("features.8.0", "features.8.1", "classifier.1"),  # torchvision
    "fc.weight": ("", "", "fc"),  # ResNets
}
_TORCH_NORM = {
    "gamma": "weight",
    "beta": "bias",
    "moving_mean": "running_mean",
    "moving_variance": "running_var",
}


def head_recipe(path: str, names: Collection[str]) -> Recipe | None:
    """Returns how to make a variable of the head from the tensors of a file, as `OtherParts`.

    Args:
        path: of the variable.
        names: in the file.
    """
    layer, _, variable = path.removeprefix("classifier/").partition("/")
    for known, (top, norm, dense) in _KERAS.items():
        if known in names:
            stored_layer = dense if layer == "class_predict" else top
            if variable.startswith("norm/"):
                stored_layer, variable = norm, variable.removeprefix("norm/")
            return as_is(f"{stored_layer}/{variable}") if stored_layer else None
    for known, (top, norm, dense) in _TORCH.items():
        if known in names:
            if variable.startswith("norm/"):
                return as_is(f"{norm}.{_TORCH_NORM[variable.removeprefix('norm/')]}")
            if layer == "class_predict":
                is_kernel = variable == "kernel"
                weight = Recipe((f"{dense}.weight",), np.transpose)
                return weight if is_kernel else as_is(f"{dense}.bias")
            return Recipe((f"{top}.weight",), from_torch_kernel) if top else None
    return None
