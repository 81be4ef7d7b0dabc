"""Runs torchvision's detectors with drawn weights; a Python with torch and torchvision calls it:

    python torchvision_detectors.py detections KIND INPUTS.npz FOLDER
    python torchvision_detectors.py losses KIND INPUTS.npz FOLDER
    python torchvision_detectors.py record small_retinanet FILE.npz  # or another small_*

The first two write `weights.pth`, as `torch.save` writes a model's state, `expected.npz`, and with
losses `gradients.pth`, computed in float64, where a gradient has the name of its parameter. The
last writes what the tests compare where there is no torch: they draw the weights again, which needs
NumPy only.
"""

# pyright: reportMissingImports=false

import sys
import zlib
from pathlib import Path

import numpy as np

# Of torchvision, Detectron2 and MMDetection.
_CLASS_LAYERS = ("cls_logits", "cls_score", "objectness_logits", "_cls")
_BOX_LAYERS = ("bbox_reg", "bbox_pred", "anchor_deltas", "_reg")


def draw_state(shapes, *, class_scale, box_scale, class_bias):
    """Draws the tensors of a detector of torchvision, each from the seed that its name gives.

    Activations keep their size from layer to layer. The last layers have the scales given.
    """
    last_norms = (".bn3", ".conv3.norm")
    if not any(f"{norm}." in name for name in shapes for norm in last_norms):
        last_norms = (".bn2", ".conv2.norm")
    state = {}
    for name, shape in shapes.items():
        random = np.random.RandomState(zlib.crc32(name.encode()))
        layer, _, part = name.rpartition(".")
        if part == "num_batches_tracked":
            value = np.zeros(shape, np.int64)
        elif part == "running_var":
            value = random.uniform(0.8, 1.2, shape)
        elif part == "running_mean" or part == "bias":
            value = random.normal(0.0, 0.1, shape)
        elif len(shape) <= 1:  # the scale of a norm; small at the end of a block
            value = random.uniform(0.8, 1.2, shape) * (0.3 if layer.endswith(last_norms) else 1.0)
        else:
            value = random.normal(0.0, np.sqrt(2.0 / np.prod(shape[1:])), shape)
        if layer.endswith(_CLASS_LAYERS):
            value = class_scale * value + (class_bias if part == "bias" else 0.0)
        elif layer.endswith(_BOX_LAYERS):
            value = box_scale * value
        state[name] = value if part == "num_batches_tracked" else np.float32(value)
    return state


# Scales with which the small detectors find a few objects in drawn images.
SMALL = {
    "small_retinanet": {"class_scale": 0.06, "box_scale": 0.03, "class_bias": -4.5},
    "small_maskrcnn_v2": {"class_scale": 0.3, "box_scale": 0.05, "class_bias": 0.0},
    "small_mobilenet": {"class_scale": 0.3, "box_scale": 0.05, "class_bias": 0.0},
}


def draw_small_state(kind, shapes):
    """The state of a small detector, whose label 0 stands for no class."""
    return forbid_labels(draw_state(shapes, **SMALL[kind]), count=5, labels=[0])


def forbid_labels(state, *, count, labels):
    """Gives labels that no class has scores next to 0, as training would."""
    for name, value in state.items():
        if name.endswith("cls_logits.bias") and len(value) == 9 * count:
            value.reshape(9, count)[:, labels] = -30.0
        if name.endswith("cls_score.bias") and len(value) == count:
            value[[label for label in labels if label]] = -30.0
    return state


def build_detector(kind):
    """Builds a detector of torchvision whose norms are frozen, without weights of anybody."""
    from torchvision.models import detection, resnet
    from torchvision.models.detection import backbone_utils
    from torchvision.ops.feature_pyramid_network import LastLevelP6P7
    from torchvision.ops.misc import FrozenBatchNorm2d

    def retinanet(name, num_classes, trainable_layers=5, **settings):
        backbone = backbone_utils._resnet_fpn_extractor(
            getattr(resnet, name)(norm_layer=FrozenBatchNorm2d),
            trainable_layers=trainable_layers,
            returned_layers=[2, 3, 4],
            extra_blocks=LastLevelP6P7(256, 256),
        )
        return detection.RetinaNet(backbone, num_classes, **settings)

    published = {"weights": None, "weights_backbone": None, "min_size": 224, "max_size": 1000}
    match kind:
        case "retinanet":
            return detection.retinanet_resnet50_fpn(**published, detections_per_img=1000)
        case "retinanet_v2":
            return detection.retinanet_resnet50_fpn_v2(**published, detections_per_img=1000)
        case "small_retinanet":
            return retinanet("resnet18", 5, min_size=128, max_size=256)
        case "mlperf":
            return retinanet("resnext50_32x4d", 264, trainable_layers=3)
        case "fasterrcnn":
            return detection.fasterrcnn_resnet50_fpn(**published)
        case "maskrcnn":
            return detection.maskrcnn_resnet50_fpn(**published)
        case "fasterrcnn_v2":
            return detection.fasterrcnn_resnet50_fpn_v2(**published)
        case "maskrcnn_v2":
            return detection.maskrcnn_resnet50_fpn_v2(**published)
        case "mobilenet":
            return detection.fasterrcnn_mobilenet_v3_large_fpn(**published)
        case "mobilenet_320":
            return detection.fasterrcnn_mobilenet_v3_large_320_fpn(**published)
        case "small_mobilenet":
            return small_mobilenet()
        case "small_maskrcnn_v2":
            return small_mask_rcnn()
    raise ValueError(f"no detector {kind}")


def small_mask_rcnn():
    """The second Mask R-CNN with ResNet-18 and narrow heads, for 4 classes."""
    from torch import nn
    from torchvision.models import detection, resnet
    from torchvision.models.detection import backbone_utils, faster_rcnn, mask_rcnn, rpn

    extract = backbone_utils._resnet_fpn_extractor
    norm, widths = nn.BatchNorm2d, [32] * 4
    return detection.MaskRCNN(
        extract(resnet.resnet18(), trainable_layers=5, norm_layer=norm),
        rpn_head=rpn.RPNHead(256, 3, conv_depth=2),
        box_head=faster_rcnn.FastRCNNConvFCHead((256, 7, 7), widths, [64], norm_layer=norm),
        box_predictor=faster_rcnn.FastRCNNPredictor(64, 5),
        mask_head=mask_rcnn.MaskRCNNHeads(256, widths, 1, norm_layer=norm),
        mask_predictor=mask_rcnn.MaskRCNNPredictor(32, 32, 5),
        rpn_post_nms_top_n_test=60,
        box_detections_per_img=20,
        min_size=128,
        max_size=256,
    )


def small_mobilenet():
    """The Faster R-CNN of MobileNetV3 with a narrow head, for 4 classes."""
    from torchvision.models import detection
    from torchvision.models.detection import faster_rcnn

    model = detection.fasterrcnn_mobilenet_v3_large_fpn(
        weights=None,
        weights_backbone=None,
        num_classes=5,
        box_detections_per_img=20,
        min_size=128,
        max_size=256,
    )
    model.roi_heads.box_head = faster_rcnn.TwoMLPHead(256 * 7 * 7, 64)
    model.roi_heads.box_predictor = faster_rcnn.FastRCNNPredictor(64, 5)
    return model


def find_detections(model, images):
    """Returns boxes, scores, labels and, if there are any, masks of all images, by their number.

    In pixels of the canvas: the images are not resized, and masks are not pasted.
    """
    import torch

    model.transform.postprocess = lambda detections, *sizes: detections

    with torch.no_grad():
        found = model.eval()([to_tensor(image) for image in images])
    return {
        f"{key}{number}": value.numpy()
        for number, detections in enumerate(found)
        for key, value in detections.items()
    }


def find_losses(model, images, boxes, labels):
    """Returns the losses and the gradient of every parameter, the mean over the images.

    One image after the other, because the activations of four would need 12 GB: with frozen norms
    they have no influence on each other.
    """
    import torch

    model.train()
    sides = images.shape[1:3]
    model.transform.min_size, model.transform.max_size = (min(sides),), max(sides)  # as they are
    losses = {}
    kind = next(model.parameters()).dtype
    for image, around, label in zip(images, boxes, labels, strict=True):
        here = label >= 0
        corners = torch.from_numpy(around[here][:, [1, 0, 3, 2]]).to(kind)
        target = {"boxes": corners, "labels": torch.from_numpy(label[here].astype(np.int64))}
        found = model([to_tensor(image).to(kind)], [target])
        (sum(found.values()) / len(images)).backward()
        for name, value in found.items():
            losses[name] = losses.get(name, 0.0) + value.item() / len(images)
    return losses


def record(kind, path):
    """Writes names and shapes of a small detector's state, and what it says of drawn images.

    Losses and gradients, computed in float64, are those of one stage: two stages draw their regions
    at random.
    """
    import torch

    model = build_detector(kind)
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    state = draw_small_state(kind, shapes)
    model.load_state_dict({name: torch.from_numpy(value) for name, value in state.items()})
    images, boxes, labels = draw_batch()
    found = find_detections(model, images)
    found["names"] = np.array(list(shapes))
    found["shapes"] = np.array([" ".join(map(str, shape)) for shape in shapes.values()])
    if kind != "small_retinanet":
        np.savez_compressed(path, **found)
        return
    losses = find_losses(model.double(), images, boxes, labels)
    gradients = {name: value.grad.numpy() for name, value in model.named_parameters()}
    np.savez_compressed(
        path,
        gradient_names=np.array(list(gradients)),
        gradient_norms=[np.linalg.norm(value) for value in gradients.values()],
        gradient_products=[np.vdot(v, draw_direction(n, v.shape)) for n, v in gradients.items()],
        **found,
        **losses,
    )


def draw_batch():
    """Draws two images of 128 by 160 pixels, their boxes y1 x1 y2 x2 and labels 1 to 4."""
    random = np.random.RandomState(0)
    coarse = random.randint(0, 256, (2, 8, 10, 3)).astype(np.uint8)
    images = coarse.repeat(16, axis=1).repeat(16, axis=2)
    starts = random.uniform(0, 80, (2, 3, 2))
    boxes = np.concatenate([starts, starts + random.uniform(12, 48, (2, 3, 2))], axis=-1)
    return images, boxes.astype(np.float32), random.randint(1, 5, (2, 3))


def draw_direction(name, shape):
    """Draws numbers of the shape of a parameter, that its gradient is multiplied with."""
    random = np.random.RandomState(zlib.crc32(f"direction of {name}".encode()))
    return random.normal(0.0, 1.0, shape).astype(np.float32)


def to_tensor(image):
    import torch

    return torch.from_numpy(image).permute(2, 0, 1).float() / 255.0


def main(what, kind, inputs_path, folder):
    import torch
    from torchvision.models._meta import _COCO_CATEGORIES

    torch.manual_seed(0)
    model = build_detector(kind)
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    with np.load(inputs_path) as inputs:
        scales = {name: float(inputs[name]) for name in ("class_scale", "box_scale", "class_bias")}
        state = draw_state(shapes, **scales)
        absent = [label for label, name in enumerate(_COCO_CATEGORIES) if name == "N/A"]
        state = forbid_labels(state, count=91, labels=[0, *absent])
        model.load_state_dict({name: torch.from_numpy(value) for name, value in state.items()})
        if what == "detections":
            images = [inputs[name] for name in sorted(inputs) if name.startswith("image")]
            expected = find_detections(model, images)
        else:
            model.double()
            expected = find_losses(model, inputs["images"], inputs["boxes"], inputs["labels"])
            model.float()
            gradients = {
                name: torch.zeros_like(value) for name, value in model.state_dict().items()
            } | {
                name: value.grad
                for name, value in model.named_parameters()
                if value.grad is not None
            }
            torch.save(gradients, Path(folder) / "gradients.pth")
    torch.save(model.state_dict(), Path(folder) / "weights.pth")
    np.savez(Path(folder) / "expected.npz", **expected)


if __name__ == "__main__":
    if sys.argv[1] == "record":
        record(*sys.argv[2:])
    else:
        main(*sys.argv[1:])
