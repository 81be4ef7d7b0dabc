"""Wrote the files beside it, with torch 2.14.1 and safetensors 0.8.0; run it in their folder."""

import collections

import torch  # pyright: ignore[reportMissingImports]
from safetensors.torch import save_file  # pyright: ignore[reportMissingImports]

base = torch.arange(12, dtype=torch.float32)
weights = collections.OrderedDict(
    [
        ("conv.weight", torch.arange(6.0).reshape(1, 2, 1, 3)),
        ("half", torch.tensor([1.5, -2.0]).half()),
        ("bfloat16", torch.tensor([1.0, 3.140625, -0.5]).bfloat16()),
        ("bn.num_batches_tracked", torch.tensor(7)),
        ("transposed", base.reshape(3, 4).t()),
        ("row", base.reshape(3, 4)[1]),
        ("every_third", base[2::3]),
        ("empty", torch.zeros(0, 3)),
        ("parameter", torch.nn.Parameter(torch.tensor([-1.0, 2.0]))),
        ("flags", torch.tensor([True, False])),
    ]
)
weights._metadata = {"": {"version": 1}}  # as Module.state_dict() has it
torch.save(weights, "old_format.pth", _use_new_zipfile_serialization=False)
torch.save(weights, "zip_format.pt")
torch.save(
    {
        "epoch": 3,
        "optimizer": {"state": {0: {"momentum_buffer": torch.ones(2)}}},
        "state_dict": {"fc.bias": torch.tensor([3.0, 4.0])},
        "state_dict_ema": {"fc.bias": torch.tensor([6.0, 8.0])},
    },
    "training_state.pt",
)
contiguous = {name: tensor.detach().contiguous() for name, tensor in weights.items()}
save_file(contiguous, "weights.safetensors", metadata={"format": "pt"})
