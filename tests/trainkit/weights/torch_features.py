"""Command for a Python with PyTorch and the libraries: random weights, and features by them.

    python torch_features.py torchvision resnet50 FOLDER
    python torch_features.py timm tf_efficientnet_b0 FOLDER
    python torch_features.py efficientnet_pytorch efficientnet-b0 FOLDER
    python torch_features.py efficientnet_lite_pytorch efficientnet-lite0 FOLDER

writes FOLDER/NAME.safetensors (timm) or FOLDER/NAME.pth (the others) with the weights, and
FOLDER/features.npz with the features of levels 2 to 5.
"""

# pyright: reportMissingImports=false
import sys

import efficientnet_lite_pytorch
import efficientnet_pytorch
import numpy as np
import timm
import torch
import torchvision
from random_networks import draw, images
from safetensors.torch import save_file


def features_of(network, batch):
    """{level: [B, H, W, C]} of a classifier of any of the libraries."""
    if hasattr(network, "layer1"):
        places = [network.layer1, network.layer2, network.layer3, network.layer4]
    elif isinstance(network, torchvision.models.MobileNetV3):
        places = [network.features[index] for index in (3, 6, 12, 16)]
    elif hasattr(network, "features"):
        places = [network.features[index] for index in (2, 3, 5, 7)]
    elif hasattr(network, "_blocks"):
        assert len(network._blocks) == 16  # the places are those of b0 and lite0
        places = [network._blocks[index] for index in (2, 4, 10, 15)]
    else:
        places = [network.blocks[index] for index in (1, 2, 4, 6)]
    features = {}
    for level, place in enumerate(places, start=2):

        def keep(module, inputs, outputs, level=level):
            features[str(level)] = outputs.permute(0, 2, 3, 1).numpy()

        place.register_forward_hook(keep)
    with torch.no_grad():
        network.eval()(torch.from_numpy(batch.transpose(0, 3, 1, 2).copy()))
    return features


def main(library, name, folder):
    makers = {
        "torchvision": torchvision.models.get_model,
        "timm": timm.create_model,
        "efficientnet_pytorch": efficientnet_pytorch.EfficientNet.from_name,
        "efficientnet_lite_pytorch": efficientnet_lite_pytorch.EfficientNet.from_name,
    }
    network = makers[library](name)
    rng = np.random.default_rng(0)
    state = {
        key: torch.from_numpy(draw(key, tuple(value.shape), rng)) if value.ndim else value
        for key, value in network.state_dict().items()
    }
    network.load_state_dict(state)
    if library == "timm":
        save_file(state, f"{folder}/{name}.safetensors")
    else:
        torch.save(state, f"{folder}/{name}.pth")
    np.savez(f"{folder}/features.npz", **features_of(network, images()))


if __name__ == "__main__":
    main(*sys.argv[1:])
