"""Runs KerasHub's RetinaNet with drawn weights; a Python with keras-hub and TensorFlow calls it:

    python kerashub_detectors.py record first|second FILE.npz
    python kerashub_detectors.py detections first|second INPUTS.npz FOLDER

The kinds are those of its presets `retinanet_resnet50_fpn_coco` and `..._v2_coco`. KerasHub writes
a file, its numbers are drawn anew, and KerasHub reads it again. The first command writes what the
tests compare where there is no KerasHub, of a ResNet-18 and four classes: the groups, names and
shapes of the file, and what is found in drawn images. The second writes a preset, 91 classes on a
ResNet-50, and `expected.npz`.
"""

# pyright: reportMissingImports=false

import runpy
import sys
import tempfile
import types
import zlib
from pathlib import Path
from typing import Any

import h5py
import numpy as np

SHARED = types.SimpleNamespace(
    **runpy.run_path(str(Path(__file__).with_name("torchvision_detectors.py")))
)
# With them a few objects are found in drawn images, and some hundred in real ones.
SMALL = {
    "first": {"class_scale": 0.06, "box_scale": 0.03, "class_bias": -4.5},
    "second": {"class_scale": 1.0, "box_scale": 0.3, "class_bias": -5.5},
}
LARGE = {
    "first": {"class_scale": 0.03, "box_scale": 0.02, "class_bias": -5.0},
    "second": {"class_scale": 0.6, "box_scale": 0.3, "class_bias": -5.4},
}
EVERY = 5  # one of so many anchors has its outputs in the record


def describe_file(file):
    """Names of the layers by group, and shapes of the variables by path, without an optimizer."""
    names, shapes = {}, {}

    def visit(path, item):
        if path.startswith("optimizer"):
            return
        group, _, last = path.rpartition("/")
        if isinstance(item, h5py.Dataset):
            shapes[path] = item.shape
        elif last == "vars" and "name" in item.attrs:
            names[group] = item.attrs["name"]

    file.visititems(visit)
    return names, shapes


def draw_variables(names, shapes, *, class_scale, box_scale, class_bias):
    """Draws the variables of a file, each from the seed that its path gives.

    Activations keep their size from layer to layer. The last layers have the scales given.
    """
    last_norm = "_3_bn" if any(name.endswith("_3_bn") for name in names.values()) else "_2_bn"
    drawn = {}
    for path, shape in shapes.items():
        random = np.random.RandomState(zlib.crc32(path.encode()))
        group, number = path.split("/vars/")
        layer = names[group]
        is_norm = layer.endswith("_bn") or layer.startswith("group_norm")
        if len(shape) > 1:
            value = random.normal(0.0, np.sqrt(2.0 / np.prod(shape[:-1])), shape)
        elif is_norm and number in "03":  # the scale, small at the end of a block; the variance
            is_last = layer.endswith(last_norm) and number == "0"
            value = random.uniform(0.8, 1.2, shape) * (0.3 if is_last else 1.0)
        else:
            value = random.normal(0.0, 0.1, shape)
        if layer == "logits_layer":
            around = [name for place, name in names.items() if group.startswith(f"{place}/")]
            is_class = "classification_head" in around
            value = value * (class_scale if is_class else box_scale)
            value = value + (class_bias if is_class and len(shape) == 1 else 0.0)
        drawn[path] = np.float32(value)
    return drawn


def write_file(path, names, variables):
    """Writes a file as Keras does: the name of a layer is at the group of its variables."""
    with h5py.File(path, "w") as file:
        for group, name in names.items():
            file.require_group(f"{group}/vars").attrs["name"] = name
        for place, value in variables.items():
            file[place] = value


def build_detector(kind, *, small):
    """Builds KerasHub's detector, without weights of anybody."""
    import keras_hub

    models = keras_hub.models
    encoder = models.ResNetBackbone(
        input_conv_filters=[64],
        input_conv_kernel_sizes=[7],
        stackwise_num_filters=[64, 128, 256, 512],
        stackwise_num_blocks=[2, 2, 2, 2] if small else [3, 4, 6, 3],
        stackwise_num_strides=[1, 2, 2, 2],
        block_type="basic_block" if small else "bottleneck_block",
    )
    is_second = kind == "second"
    pyramid = models.RetinaNetBackbone(encoder, min_level=3, max_level=7, use_p5=is_second)
    decoder = keras_hub.layers.NonMaxSuppression(
        bounding_box_format="xyxy",
        from_logits=True,
        iou_threshold=0.5,
        confidence_threshold=0.05,
        max_detections=100 if small else 1000,
    )
    return models.RetinaNetObjectDetector(
        pyramid,
        num_classes=4 if small else 91,
        bounding_box_format="xyxy",
        use_prediction_head_norm=is_second,
        prediction_decoder=decoder,
    )


def redraw(detector, scales, labels=()):
    """Has the detector write a file and read it with drawn numbers; returns names and shapes.

    Labels that no class has get scores next to 0, as training would give them.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/drawn.weights.h5"
        detector.save_weights(path)
        with h5py.File(path, "r+") as file:
            names, shapes = describe_file(file)
            for place, value in draw_variables(names, shapes, **scales).items():
                stored: Any = file[place]
                stored[...] = value
        detector.load_weights(path)
    bias = detector.classification_head.prediction_layer.bias
    values = to_numpy(bias).reshape(9, -1).copy()
    values[:, list(labels)] = -30.0
    bias.assign(values.ravel())
    return names, shapes


def to_numpy(value) -> Any:
    from keras import ops

    return ops.convert_to_numpy(value)


def find_objects(detector, images):
    """Logits and deltas [B, A, .], and boxes, scores and labels from 0 of each image.

    Boxes are clipped to the image before KerasHub suppresses, which itself clips none.
    """
    from keras.utils import bounding_boxes

    mean, deviation = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    pixels = np.float32((images / 255.0 - mean) / deviation)
    outputs = detector(pixels, training=False)
    anchors = np.concatenate([to_numpy(a) for a in detector.anchor_generator(pixels).values()])
    boxes = bounding_boxes.decode_deltas_to_boxes(
        anchors=anchors,
        boxes_delta=outputs["bbox_regression"],
        anchor_format="xyxy",
        box_format="xyxy",
        encoded_format="center_xywh",
        image_shape=images.shape[1:],
    )
    height, width = images.shape[1:3]
    boxes = np.clip(to_numpy(boxes), 0.0, np.array([width, height] * 2, np.float32))
    found = detector.prediction_decoder(boxes, outputs["cls_logits"], images=pixels)
    found = {key: to_numpy(value) for key, value in found.items()}
    results = {}
    for number, count in enumerate(found["num_detections"]):
        results[f"boxes{number}"] = found["boxes"][number, :count]
        results[f"scores{number}"] = found["confidence"][number, :count]
        results[f"labels{number}"] = found["labels"][number, :count]
    return to_numpy(outputs["cls_logits"]), to_numpy(outputs["bbox_regression"]), results


def record(kind, path):
    """Writes what the tests compare where there is no KerasHub."""
    detector = build_detector(kind, small=True)
    names, shapes = redraw(detector, SMALL[kind])
    logits, deltas, found = find_objects(detector, SHARED.draw_batch()[0])
    for number in range(2):
        found[f"labels{number}"] += 1
        scores = found[f"scores{number}"]
        print(kind, "image", number, len(scores), scores[:3], scores[-1:])
    np.savez_compressed(
        path,
        groups=np.array(list(names)),
        layers=np.array(list(names.values())),
        variables=np.array(list(shapes)),
        shapes=np.array([" ".join(map(str, shape)) for shape in shapes.values()]),
        logits=logits[:, ::EVERY],
        deltas=deltas[:, ::EVERY],
        **found,
    )


def detect(kind, inputs_path, folder):
    """Writes a preset of a detector with ResNet-50, and what it finds in the images given."""
    detector = build_detector(kind, small=False)
    with np.load(inputs_path) as inputs:
        redraw(detector, LARGE[kind], labels=inputs["absent"])
        logits, deltas, found = find_objects(detector, inputs["images"])
    detector.save_to_preset(f"{folder}/preset")
    detector.save_weights(f"{folder}/whole.weights.h5")
    detector.save(f"{folder}/whole.keras")
    np.savez(Path(folder) / "expected.npz", logits=logits, deltas=deltas, **found)


if __name__ == "__main__":
    {"record": record, "detections": detect}[sys.argv[1]](*sys.argv[2:])
