"""LiteRT and ONNX files give the detections of the SavedModel that they were made from."""

import json
import warnings
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import tensorflow as tf

from tpudet.detection.commands.convert_model import main
from tpudet.detection.data.tfrecord import EncodedImage, encode_example
from tpudet.trainkit.images.canvas import decode_to_canvas
from tpudet.trainkit.records import shard_path, write_shard

Outputs = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def canvases(jpegs: dict[str, bytes]) -> list[np.ndarray]:
    return [decode_to_canvas(file, 64, 96).image.numpy()[None] for file in jpegs.values()]


@pytest.fixture(scope="module")
def expected(saved_model: Path, canvases: list[np.ndarray]) -> list[Outputs]:
    model = tf.saved_model.load(str(saved_model))
    detect = model.signatures["canvas"]
    return [{k: v.numpy() for k, v in detect(input=tf.constant(c)).items()} for c in canvases]


def run_litert(path: Path, canvases: list[np.ndarray]) -> list[Outputs]:
    interpreter: Any = pytest.importorskip("ai_edge_litert.interpreter")
    run = interpreter.Interpreter(model_path=str(path)).get_signature_runner()
    return [run(input=canvas) for canvas in canvases]


def run_onnx(path: Path, canvases: list[np.ndarray]) -> list[Outputs]:
    session = pytest.importorskip("onnxruntime").InferenceSession(str(path))
    names = [output.name for output in session.get_outputs()]
    return [
        dict(zip(names, session.run(None, {"input": canvas}), strict=True)) for canvas in canvases
    ]


@pytest.mark.parametrize(("name", "run"), [("m.tflite", run_litert), ("m.onnx", run_onnx)])
def test_the_same_detections(
    name: str,
    run: Any,
    saved_model: Path,
    canvases: list[np.ndarray],
    expected: list[Outputs],
    tmp_path: Path,
    capsys: Any,
) -> None:
    path = tmp_path / name
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the converters
        assert main([str(saved_model), str(path)]) == 0
    assert sorted(file.name for file in tmp_path.iterdir()) == [name, f"{name}.json"]
    found = run(path, canvases)
    assert sum(int(one["num_detections"][0]) for one in expected) > 4
    for one, wanted in zip(found, expected, strict=True):
        assert one.keys() == wanted.keys()
        for key, value in wanted.items():
            np.testing.assert_allclose(one[key], value, atol=1e-4, err_msg=key)
    told = json.loads((tmp_path / f"{name}.json").read_text())
    assert told["input"]["shape"] == [1, 64, 96, 3]
    assert told["classes"] == [["/m/01", "cat"], ["/m/02", "dog"], ["/m/03", "sheep"]]
    assert main([str(saved_model), str(path)]) == 2
    assert f"{path} exists: --overwrite replaces it" in capsys.readouterr().err


@pytest.mark.parametrize("source", ["folder", "records"])
def test_int8_is_near(
    source: str,
    saved_model: Path,
    canvases: list[np.ndarray],
    expected: list[Outputs],
    jpegs: dict[str, bytes],
    tmp_path: Path,
) -> None:
    """Calibrated on the images themselves: scores to 0.02, and the kernel in bytes."""
    calibration = tmp_path / "images"
    if source == "folder":
        calibration.mkdir()
        for name, encoded in jpegs.items():
            (calibration / f"{name}.jpg").write_bytes(encoded)
    else:
        nothing: Any = {"labels": [], "texts": [], "is_crowd": [], "areas": []}
        records = [
            encode_example(
                EncodedImage(
                    source_id=name, filename=name, encoded=encoded, format="jpeg", height=1, width=1
                ),
                boxes_normalized=np.zeros((0, 4)),
                **nothing,
            )
            for name, encoded in jpegs.items()
        ]
        calibration = tmp_path / "val_photos"
        write_shard(shard_path(str(calibration), 0, 1), records)
    path = tmp_path / "m.tflite"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert main([str(saved_model), str(path), "--int8", str(calibration)]) == 0
    assert json.loads((tmp_path / "m.tflite.json").read_text())["precision"] == "int8"
    found = run_litert(path, canvases)
    for one, wanted in zip(found, expected, strict=True):
        ours, theirs = (np.sort(x["detection_scores"][0])[::-1] for x in (one, wanted))
        n = int(min(one["num_detections"][0], wanted["num_detections"][0]))
        np.testing.assert_allclose(ours[:n], theirs[:n], atol=0.02)
    assert any(
        not np.array_equal(a["detection_scores"], b["detection_scores"])
        for a, b in zip(found, expected, strict=True)
    )


def test_what_is_refused(saved_model: Path, tmp_path: Path, capsys: Any) -> None:
    def error(*arguments: str) -> str:
        assert main([*arguments]) == 2
        return capsys.readouterr().err

    assert "must end in .tflite or .onnx" in error(str(saved_model), str(tmp_path / "m.pb"))
    assert "no SavedModel" in error(str(tmp_path), str(tmp_path / "m.onnx"))
    nowhere = str(tmp_path / "nowhere")
    said = error(str(saved_model), str(tmp_path / "m.tflite"), "--int8", nowhere)
    assert f"{nowhere}: neither a folder of images nor a split of a prepared set" in said
    cv2.imwrite(str(tmp_path / "one.png"), np.zeros((9, 9, 3), np.uint8))
    said = error(str(saved_model), str(tmp_path / "m.onnx"), "--int8", str(tmp_path))
    assert "int8 is made for LiteRT only" in said
    assert [file.name for file in tmp_path.iterdir()] == ["one.png"]
