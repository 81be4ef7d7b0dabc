"""Runs Detectron2's and MMDetection's own detectors with drawn weights and records what they find:

    python other_detectors.py detectron2 retinanet|mask_rcnn FILE.npz
    python other_detectors.py mmdetection retinanet|atss|mask_rcnn FILE.npz

The Python has torch and torchvision, and the source of Detectron2, which is no package, or
mmdet 3.3.0, mmengine and mmcv-lite 2.1.0. The latter lacks RoIAlign and suppression, which are
torchvision's here. The files have names and shapes of all tensors; tests draw the weights again.
"""

# pyright: reportMissingImports=false

import runpy
import sys
import types
from pathlib import Path

import numpy as np

SHARED = types.SimpleNamespace(
    **runpy.run_path(str(Path(__file__).with_name("torchvision_detectors.py")))
)
NUM_CLASSES = 4
# With them a few objects are found in drawn images.
SCALES = {
    # Its pixels have deviations of 58, and so all features.
    "detectron2": {
        "retinanet": {"class_scale": 0.001, "box_scale": 0.0005, "class_bias": -4.5},
        "mask_rcnn": {"class_scale": 0.005, "box_scale": 0.001, "class_bias": 0.0},
    },
    "mmdetection": {
        "retinanet": {"class_scale": 0.06, "box_scale": 0.03, "class_bias": -4.5},
        "atss": {"class_scale": 1.2, "box_scale": 0.3, "class_bias": -4.5},
        "mask_rcnn": {"class_scale": 0.3, "box_scale": 0.05, "class_bias": 0.0},
    },
}
PROPOSALS, DETECTIONS = 60, 20


def draw_other_state(library, kind, shapes):
    """Draws the state of a detector."""
    return SHARED.draw_state(shapes, **SCALES[library][kind])


def run_detectron2(kind, draw):
    """Boxes, scores, labels from 1 and masks of the drawn images, and the shapes by name."""
    import torch
    from detectron2.config import get_cfg
    from detectron2.modeling import build_model

    cfg = get_cfg()
    model, anchors = cfg.MODEL, cfg.MODEL.ANCHOR_GENERATOR
    model.DEVICE = "cpu"
    first = 3 if kind == "retinanet" else 2
    stages = [f"res{level}" for level in range(first, 6)]
    model.RESNETS.OUT_FEATURES = model.FPN.IN_FEATURES = stages
    sides = [[32.0], [64.0], [128.0], [256.0], [512.0]]
    if kind == "retinanet":
        model.META_ARCHITECTURE = "RetinaNet"
        model.BACKBONE.NAME = "build_retinanet_resnet_fpn_backbone"
        anchors.SIZES = [[side * 2 ** (s / 3) for s in range(3)] for (side,) in sides]
        model.RETINANET.NUM_CLASSES = NUM_CLASSES
        # It suppresses before it clips boxes to the image, and here it is the other way round.
        model.RETINANET.NMS_THRESH_TEST = 1.0
        cfg.TEST.DETECTIONS_PER_IMAGE = 1000
    else:
        model.MASK_ON = True
        model.BACKBONE.NAME = "build_resnet_fpn_backbone"
        anchors.SIZES = sides
        model.RPN.IN_FEATURES = ["p2", "p3", "p4", "p5", "p6"]
        model.RPN.PRE_NMS_TOPK_TEST, model.RPN.POST_NMS_TOPK_TEST = 1000, PROPOSALS
        heads = model.ROI_HEADS
        heads.NAME, heads.IN_FEATURES = "StandardROIHeads", ["p2", "p3", "p4", "p5"]
        heads.NUM_CLASSES = NUM_CLASSES
        box, mask = model.ROI_BOX_HEAD, model.ROI_MASK_HEAD
        box.NAME, box.NUM_FC, box.POOLER_RESOLUTION = "FastRCNNConvFCHead", 2, 7
        mask.NAME, mask.NUM_CONV = "MaskRCNNConvUpsampleHead", 4
        mask.POOLER_RESOLUTION = 14
        box.POOLER_SAMPLING_RATIO = mask.POOLER_SAMPLING_RATIO = 2
        cfg.TEST.DETECTIONS_PER_IMAGE = DETECTIONS
    detector = build_model(cfg).eval()
    shapes = {name: tuple(value.shape) for name, value in detector.state_dict().items()}
    state = draw(shapes)
    detector.load_state_dict({name: torch.from_numpy(value) for name, value in state.items()})
    found = {}
    for number, image in enumerate(SHARED.draw_batch()[0]):
        pixels = torch.from_numpy(image[..., ::-1].copy()).permute(2, 0, 1)
        with torch.no_grad():
            if kind == "retinanet":
                instances = detector([{"image": pixels}])[0]["instances"]
            else:
                instances = detector.inference([{"image": pixels}], do_postprocess=False)[0]
        found[f"boxes{number}"] = instances.pred_boxes.tensor.numpy()
        found[f"scores{number}"] = instances.scores.numpy()
        found[f"labels{number}"] = instances.pred_classes.numpy() + 1
        if kind == "mask_rcnn":
            found[f"masks{number}"] = instances.pred_masks.numpy()
    return found, shapes


def stand_in_for_mmcv_ops():
    """Puts torchvision's RoIAlign and suppression where mmcv has compiled ones."""
    import torch
    import torchvision
    from torch import nn

    class RoIAlign(nn.Module):
        def __init__(self, output_size, spatial_scale=1.0, sampling_ratio=0, aligned=True, **_):
            super().__init__()
            self.output_size = (output_size, output_size)
            self.settings = (self.output_size, spatial_scale, sampling_ratio, aligned)

        def forward(self, features, rois):
            return torchvision.ops.roi_align(features, rois, *self.settings)

    def batched_nms(boxes, scores, idxs, nms_cfg, class_agnostic=False):
        kept = torchvision.ops.batched_nms(boxes, scores, idxs, nms_cfg["iou_threshold"])
        return torch.cat([boxes[kept], scores[kept, None]], dim=1), kept

    def others(name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (nn.Module,), {})

    known = {"RoIAlign": RoIAlign, "batched_nms": batched_nms, "__getattr__": others}
    inside = ("nms", "roi_align", "carafe", "merge_cells", "multi_scale_deform_attn")
    inside += ("deform_conv", "modulated_deform_conv", "roi_pool", "point_sample", "masked_conv")
    for name in ("mmcv.ops", *(f"mmcv.ops.{part}" for part in inside)):
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__dict__.update(known, __path__=[])


def run_mmdetection(kind, draw):
    """The same of MMDetection's published configs, with ResNet-18 and four classes."""
    stand_in_for_mmcv_ops()
    import mmdet
    import torch
    from mmdet.registry import MODELS
    from mmdet.utils import register_all_modules
    from mmengine.config import Config

    register_all_modules()
    file = {
        "retinanet": "_base_/models/retinanet_r50_fpn.py",
        "atss": "atss/atss_r50_fpn_1x_coco.py",
        "mask_rcnn": "_base_/models/mask-rcnn_r50_fpn.py",
    }[kind]
    cfg = Config.fromfile(str(Path(str(mmdet.__file__)).parent / ".mim/configs" / file)).model
    cfg.backbone.depth, cfg.backbone.init_cfg = 18, None
    cfg.neck.in_channels = [64, 128, 256, 512]
    if kind == "mask_rcnn":
        cfg.test_cfg.rpn.max_per_img, cfg.test_cfg.rcnn.max_per_img = PROPOSALS, DETECTIONS
        for part in ("bbox", "mask"):
            cfg.roi_head[f"{part}_head"].num_classes = NUM_CLASSES
            cfg.roi_head[f"{part}_roi_extractor"].roi_layer.sampling_ratio = 2
    else:
        cfg.bbox_head.num_classes, cfg.test_cfg.max_per_img = NUM_CLASSES, 300
    detector = MODELS.build(cfg).eval()
    shapes = {name: tuple(value.shape) for name, value in detector.state_dict().items()}
    state = draw(shapes)
    state = {name: torch.from_numpy(np.asarray(value)) for name, value in state.items()}
    detector.load_state_dict(state)
    mean, std = (
        torch.tensor(cfg.data_preprocessor[key]).reshape(3, 1, 1) for key in ("mean", "std")
    )
    found = {}
    for number, image in enumerate(SHARED.draw_batch()[0]):
        pixels = (torch.from_numpy(image).permute(2, 0, 1).float() - mean) / std
        with torch.no_grad():
            results = _find_objects(detector, kind, pixels[None], image.shape[:2])
        found |= {f"{key}{number}": value.numpy() for key, value in results.items()}
    return found, shapes


def _find_objects(detector, kind, pixels, size):
    import torch
    from mmdet.structures.bbox import bbox2roi

    meta = [{"img_shape": size, "ori_shape": size, "scale_factor": (1.0, 1.0)}]
    features = detector.extract_feat(pixels)
    if kind != "mask_rcnn":
        head = detector.bbox_head
        (found,) = head.predict_by_feat(*head(features), batch_img_metas=meta, rescale=False)
        return {"boxes": found.bboxes, "scores": found.scores, "labels": found.labels + 1}
    rpn, heads = detector.rpn_head, detector.roi_head
    proposals = rpn.predict_by_feat(*rpn(features), batch_img_metas=meta, rescale=False)
    (found,) = heads.predict_bbox(features, meta, proposals, heads.test_cfg, rescale=False)
    masks = heads._mask_forward(features, bbox2roi([found.bboxes]))["mask_preds"].sigmoid()
    masks = masks[torch.arange(len(masks)), found.labels][:, None]
    boxes, labels = found.bboxes, found.labels + 1
    return {"boxes": boxes, "scores": found.scores, "labels": labels, "masks": masks}


def main(library, kind, path):
    run = {"detectron2": run_detectron2, "mmdetection": run_mmdetection}[library]
    found, shapes = run(kind, lambda shapes: draw_other_state(library, kind, shapes))
    for name, values in found.items():
        if name.startswith("scores"):
            print(name, len(values), values[:3], values[-1:])
    np.savez_compressed(
        path,
        names=np.array(list(shapes)),
        shapes=np.array([" ".join(map(str, shape)) for shape in shapes.values()]),
        **found,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
