"""Converts SavedModels to LiteRT and ONNX, suppression included, for one canvas at a time.

Either file takes `input`, [1, H, W, 3] uint8 RGB, an image on its canvas, and gives the outputs of
the SavedModel's signature `canvas`. Beside it, `<path>.json` says what the canvas is, what comes
out, and the class names. Of the exporters to ONNX, tf2onnx converts the graph as it is; torch's and
Keras' own would need the model rebuilt, and Keras' calls tf2onnx.
"""

import importlib.util
import json
import os
import tempfile
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import numpy as np

from tpudet.detection.data.config import FitConfig, ResizeConfig, ShortSideConfig, StretchConfig
from tpudet.detection.inference.saved_detector import exported_padding, read_saved_detector
from tpudet.trainkit.class_list import read_class_list
from tpudet.trainkit.errors import UserError
from tpudet.trainkit.files import storage
from tpudet.trainkit.files.claims import Claim, claim_beside
from tpudet.trainkit.files.file_kinds import MODEL_DESCRIPTION, refuse_other_kind
from tpudet.trainkit.files.inputs import read_input
from tpudet.trainkit.files.storage import whole_file
from tpudet.trainkit.image_folder import list_images
from tpudet.trainkit.images.standardize import standardize
from tpudet.trainkit.saved_model import SavedModel, load_saved_model

PortableFormat = Literal["litert", "onnx"]

FORMATS: dict[str, PortableFormat] = {".tflite": "litert", ".onnx": "onnx"}
# By a pattern of the layers' names: the operations that become int8.
_QUANTIZED = {
    ".*": ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED"),
    "/(backbone|neck)": ("ADD",),
}
_OPSET = 17  # of ONNX: the first with everything here; runtimes of 2022 read it


def convert_model(
    directory: str,
    path: str,
    *,
    int8: str | None,
    num_images: int,
    overwrite: bool,
) -> int:
    """Writes `path` and `<path>.json`.

    Args:
        directory: of a SavedModel.
        path: ends in one of `FORMATS`.
        int8: source of images, see `read_canvases`, whose activations decide the scales of an int8
            LiteRT model; None for float32.
        num_images: the most that are read of them; some hundreds suffice.
        overwrite: replace the file.

    Returns:
        The size of the file in bytes.

    Raises:
        UserError: the SavedModel lacks the signature `canvas` or the sides of its resizing; name,
            format, converter or `int8` do not fit; the file, or another's `<path>.json`, exists.
    """
    to = _format(path, is_int8=int8 is not None)
    saved = read_saved_detector(directory)
    resize = _exported_resize(saved)
    if int8 is not None and resize is None:
        raise UserError(
            f"{saved.directory} does not say the sides of its data.resize, which calibrating "
            "needs: export it again with tpudet export"
        )
    description = f"{path}.json"
    with Claim(claim_beside(path), output=path) as claim:
        if storage.exists(path) and not overwrite:
            raise UserError(f"{path} exists: --overwrite replaces it")
        refuse_other_kind(description, MODEL_DESCRIPTION)
        if to == "onnx":
            encoded = _to_onnx(saved)
        elif int8 is None:
            encoded = _to_litert(saved)
        else:
            assert resize is not None  # refused above
            _require("ai_edge_quantizer", "int8")  # before minutes of reading and conversion
            height, width = saved.metadata["canvas_size"]
            canvases = read_canvases(
                int8, (height, width), resize, padding=exported_padding(saved), limit=num_images
            )
            encoded = _to_int8(_to_litert(saved), canvases)
        claim.verify()
        storage.remove_if_there(description)  # never that of another model beside this one
        with whole_file(path, "wb") as file:
            file.write(encoded)
        storage.write_text(description, _description(saved, is_int8=int8 is not None))
    return len(encoded)


def _format(path: str, *, is_int8: bool) -> PortableFormat:
    extension = os.path.splitext(path)[1].lower()
    if extension not in FORMATS:
        raise UserError(
            f"{path}: the name must end in {' or '.join(FORMATS)}, which says the format"
        )
    if is_int8 and FORMATS[extension] != "litert":
        raise UserError(f"{path}: int8 is made for LiteRT only, a name that ends in .tflite")
    return FORMATS[extension]


def read_canvases(
    source: str,
    canvas_size: tuple[int, int],
    resize: ResizeConfig,
    *,
    padding: Sequence[int],
    limit: int,
) -> list[np.ndarray]:
    """Reads images as the detector sees them, [H, W, 3] uint8, evenly from the whole source.

    Args:
        source: a folder of images, or a split of a prepared set, `<folder>/<split>_<part>`.
        canvas_size: height and width.
        resize: how the detector's images come to the canvas.
        padding: red, green and blue beyond an image, 0..255.
        limit: maximum number of images.

    Raises:
        UserError: there is neither, or an image cannot be decoded.
    """
    import tensorflow as tf

    from tpudet.detection.data.resize import build_resize
    from tpudet.trainkit.images.canvas import pad_with_colour, place_on_canvas
    from tpudet.trainkit.records import count_records, find_shards, read_records

    if storage.is_folder(source):
        files = list_images(source, None)
        chosen = [files[row].path for row in _spread(len(files), limit)]
        encoded = [standardize(read_input(path, "--int8")).encoded for path in chosen]
    else:
        try:
            shards = find_shards(source)
        except FileNotFoundError as error:
            raise UserError(
                f"--int8 {source}: neither a folder of images nor a split of a prepared set"
            ) from error
        wanted = {*_spread(sum(count_records(shards)), limit)}
        keys = {"image/encoded": tf.io.FixedLenFeature([], tf.string)}
        encoded = [
            tf.io.parse_single_example(record, keys)["image/encoded"]
            for row, (_, record) in enumerate(read_records(shards))
            if row in wanted
        ]
    placement = {"scale": 1.0, "position": (0.0, 0.0), "flip": False}
    placement["resize"] = build_resize(resize)
    return [
        pad_with_colour(
            place_on_canvas(file, *canvas_size, **placement).image, *canvas_size, padding
        ).numpy()
        for file in encoded
    ]


def _spread(count: int, limit: int) -> list[int]:
    return np.unique(np.linspace(0, count - 1, min(count, limit)).round().astype(int)).tolist()


def _to_litert(saved: SavedModel) -> bytes:
    import tensorflow as tf

    model, detect = _one_canvas(saved)
    converter: Any = tf.lite.TFLiteConverter.from_concrete_functions(
        [detect.get_concrete_function()], model
    )
    return converter.convert()


def _to_int8(encoded: bytes, calibration: Iterable[np.ndarray]) -> bytes:
    """Quantizes the convolutions of a LiteRT model, and the sums between them.

    Decoding and suppression stay in float32: they are a thousandth of the arithmetic, and in int8
    a coordinate is known to 1/256 of the canvas only (2.3 AP less on BCCD).
    """
    from ai_edge_quantizer import qtyping, quantizer
    from ai_edge_quantizer.calibrator import CalibrationMode

    model = quantizer.Quantizer(bytearray(encoded))
    for layers, operations in _QUANTIZED.items():
        for name in operations:
            operation = qtyping.TFLOperationName[name]
            model.add_static_config(layers, operation, activation_num_bits=8, weight_num_bits=8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the interpreter, about memory
        # The mode that takes tensors without data, which suppression has; TensorFlow's own
        # calibrator crashes on them.
        ranges = model.calibrate(
            {"serving_default": [{"input": image[None]} for image in calibration]},
            mode=CalibrationMode.CALIBRATION_PROFILER_BASED,
        )
        done = model.quantize(ranges, enable_progress_bar=False, enable_progress_report=False)
    assert done.quantized_model is not None
    return bytes(done.quantized_model)


def _require(module: str, extra: str) -> None:
    if importlib.util.find_spec(module) is None:
        raise UserError(f"{module} is not installed: pip install 'tpudet[{extra}]' brings it")


def _to_onnx(saved: SavedModel) -> bytes:
    for module in ("onnx", "tf2onnx"):
        _require(module, "onnx")
    import onnx
    import tf2onnx

    _, detect = _one_canvas(saved)
    model, _ = tf2onnx.convert.from_function(
        detect, input_signature=detect.input_signature, opset=_OPSET
    )
    for key, value in json.loads(_description(saved, is_int8=False)).items():
        entry = model.metadata_props.add()
        entry.key, entry.value = key, json.dumps(value)
    with tempfile.TemporaryDirectory() as folder:
        # By its path: a model of more than 2 GB cannot be checked in memory.
        path = os.path.join(folder, "model.onnx")
        onnx.save(model, path)
        onnx.checker.check_model(path)
    return model.SerializeToString()


def _one_canvas(saved: SavedModel) -> tuple[Any, Any]:
    """The loaded model, which owns the variables, and its function of a batch of one canvas."""
    import tensorflow as tf

    model = load_saved_model(saved)
    if "canvas" not in model.signatures:
        raise UserError(
            f"{saved.directory} has no signature `canvas`: export it again with tpudet export"
        )
    signature: Callable[..., Any] = model.signatures["canvas"]
    shape = [1, *saved.metadata["canvas_size"], 3]

    @tf.function(input_signature=[tf.TensorSpec(shape, tf.uint8, name="input")], autograph=False)
    def detect(images: Any) -> Any:
        return signature(input=images)

    return model, detect


def _description(saved: SavedModel, *, is_int8: bool) -> str:
    classes = read_class_list(saved.class_list_text)
    return json.dumps(
        {
            **saved.metadata,
            "precision": "int8" if is_int8 else "float32",
            "input": {"shape": [1, *saved.metadata["canvas_size"], 3], "type": "uint8 RGB"},
            "placement": _placement(_exported_resize(saved), exported_padding(saved)),
            "box_order": "y1 x1 y2 x2 of the canvas",
            "classes": [[entry.identifier, entry.name] for entry in classes],  # from id 1
        },
        indent=2,
    )


def _exported_resize(saved: SavedModel) -> ResizeConfig | None:
    """How the images of a SavedModel come to its canvas; one that does not say it fits them.

    None where an export of an earlier version does not say the sides of `short_side`.
    """
    facts = {"resize": "fit", **saved.metadata}
    match facts:
        case {"resize": "fit"}:
            return FitConfig()
        case {"resize": "stretch"}:
            return StretchConfig()
        case {"resize": "short_side", "short_side": int(short), "long_side": int(long)}:
            return ShortSideConfig(short_side=short, long_side=long)
        case _:
            return None


def _placement(resize: ResizeConfig | None, padding: Sequence[int]) -> str:
    rest = f"the rest is {' '.join(map(str, padding)) if any(padding) else 0}"
    match resize:
        case None:
            return "resized by its shorter side, data.resize of the run's config.yaml, aspect kept"
        case FitConfig():
            return f"resized to fit into the canvas, aspect kept, at its upper left; {rest}"
        case StretchConfig():
            return "resized to the whole canvas, aspect not kept"
        case ShortSideConfig():
            return (
                f"resized to {resize.short_side} pixels on its shorter side, or less for at most "
                f"{resize.long_side} on its longer one and to fit into the canvas, aspect kept, "
                f"sides rounded down, at its upper left; {rest}"
            )
