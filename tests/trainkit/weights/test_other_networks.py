"""Weights of a larger network hold all that a smaller one asks for, and are refused even so."""

import functools

import keras
import numpy as np
import pytest

from tpudet.trainkit.backbones.batch_norm import BatchNorm
from tpudet.trainkit.backbones.efficientnet import EfficientNet
from tpudet.trainkit.backbones.resnet import ResNet
from tpudet.trainkit.weights.load import load_weights
from tpudet.trainkit.weights.name_maps import keras_names, tensorflow_names, torch_names
from tpudet.trainkit.weights.name_maps.recipes import as_is, find_units, split_path
from tpudet.trainkit.weights.stored_weights import StoredWeights, WeightsError

NORM = functools.partial(BatchNorm, momentum=0.99, epsilon=1e-3)


def own_names(unit, part, names):
    return as_is(f"{unit.path}/{part}")


def built(name, max_level=5):
    network = (
        ResNet(depth=name, max_level=max_level, make_norm=NORM)
        if isinstance(name, int)
        else EfficientNet(variant=name, drop_connect_rate=0.2, max_level=max_level, make_norm=NORM)
    )
    network.build((None, None, None, 3))
    return network


backbone = functools.cache(built)


@functools.cache
def shapes_of(name):
    """By path, without the time that a large network's random numbers take."""
    with keras.StatelessScope(initialize_variables=False):
        variables = built(name).variables
    return {v.path: tuple(v.shape) for v in variables if split_path(v.path)}


def file_of(name, name_map):
    """The tensors of a file of this network under these names: zeros, in the file's layouts."""
    units, tensors = find_units(shapes_of(name)), {}
    for path, shape in shapes_of(name).items():
        unit, part = split_path(path) or ("", "")
        stored = name_map(units[unit], part, ()).names[0]
        if name_map.__module__ == torch_names.__name__ and len(shape) == 4:
            height, width, inputs, outputs = shape
            is_depthwise = part == "depthwise_kernel"
            shape = (inputs, 1, height, width) if is_depthwise else (outputs, inputs, height, width)
        tensors[stored] = np.zeros(shape, np.float32)
        if stored.endswith(".running_mean"):
            tensors[stored.replace("running_mean", "num_batches_tracked")] = np.array(1)
    return StoredWeights(tensors, "a test")


RESNETS = [own_names, keras_names.resnet, torch_names.resnet]
# Blocks are counted within a stage; or through the network, where no other number of them fits.
BY_STAGE = [
    keras_names.efficientnet,
    torch_names.timm_efficientnet,
    torch_names.torchvision_efficientnet,
]
THROUGHOUT = [own_names, tensorflow_names.efficientnet, torch_names.efficientnet_pytorch]


@pytest.mark.parametrize(
    ("stored", "model", "name_map", "more"),
    [
        (101, 50, torch_names.resnet, 17 * 3 * 5),  # 17 blocks of 3 convolutions of 5 tensors
        *((34, 18, name_map, 8 * 2 * 5) for name_map in RESNETS),
        # One block of 14 tensors, which does not expand, and six of 19.
        *(("b1", "b0", name_map, 14 + 6 * 19) for name_map in BY_STAGE),
        # Kernel and bias of squeeze and of excitation, in 16 blocks.
        *(("b0", "lite0", name_map, 16 * 4) for name_map in [*BY_STAGE[:-1], *THROUGHOUT]),
    ],
)
def test_a_larger_network_is_refused_with_the_number_of_tensors_left_over(
    stored, model, name_map, more
):
    with pytest.raises(WeightsError) as error:
        load_weights(backbone(model), file_of(stored, name_map), min_backbone_share=0.9)
    assert f"The file has {more} more tensors of the backbone, for example" in str(error.value)
    assert "of another depth or variant than the model's" in str(error.value)


@pytest.mark.parametrize(
    ("name", "name_map"),
    [
        *((18, name_map) for name_map in RESNETS),
        *(("b0", name_map) for name_map in [*BY_STAGE, *THROUGHOUT]),
        ("lite0", torch_names.timm_efficientnet),
    ],
)
def test_the_network_itself_loads_also_where_a_part_of_it_is_excluded(name, name_map):
    for exclude in ((), ("backbone/stage4/",)):
        report = load_weights(
            backbone(name), file_of(name, name_map), exclude=exclude, min_backbone_share=0.9
        )
        assert report.backbone_share == 1.0
        assert report.missing == report.shape_skipped == ()


@pytest.mark.parametrize(
    ("name", "name_map"),
    [
        *((18, name_map) for name_map in [*RESNETS, tensorflow_names.resnet]),
        *(("b0", name_map) for name_map in [*BY_STAGE, *THROUGHOUT]),
    ],
)
def test_a_backbone_that_ends_early_takes_the_beginning_of_the_whole_one(name, name_map):
    report = load_weights(
        backbone(name, max_level=4), file_of(name, name_map), min_backbone_share=0.9
    )
    assert report.backbone_share == 1.0
    assert report.missing == report.shape_skipped == ()
    assert report.notes[-1].startswith("The backbone ends at the coarsest level of the pyramid")
