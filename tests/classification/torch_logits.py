"""Command for a Python with PyTorch: random weights of a classifier, and its logits.

    python torch_logits.py timm resnet18 FOLDER

reads FOLDER/images.npy, normalised [B, H, W, 3] float32, and writes FOLDER/resnet18.safetensors and
FOLDER/logits.npy, [B, 11].
"""

# pyright: reportMissingImports=false
import importlib
import sys

import numpy as np
import torch
from safetensors.torch import save_file


def main(library, name, folder):
    if library == "timm":
        network = importlib.import_module("timm").create_model(name, num_classes=11)
    else:
        network = importlib.import_module("torchvision").models.get_model(name, num_classes=11)
    generator = torch.Generator().manual_seed(3)
    state = network.state_dict()
    for key, value in state.items():  # statistics and scales that are not those of a new network
        if key.endswith(("running_var", "weight")) and value.ndim == 1:
            value.uniform_(0.5, 1.5, generator=generator)
        elif value.ndim == 1:
            value.normal_(0, 0.1, generator=generator)
    images = torch.from_numpy(np.load(f"{folder}/images.npy").transpose(0, 3, 1, 2).copy())
    with torch.no_grad():
        np.save(f"{folder}/logits.npy", network.eval()(images).numpy())
    save_file(state, f"{folder}/{name}.safetensors")


if __name__ == "__main__":
    torch.manual_seed(1)
    main(*sys.argv[1:])
