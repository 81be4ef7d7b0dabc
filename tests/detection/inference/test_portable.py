"""LiteRT and ONNX files give the detections of the SavedModel that they were made from."""

import functools
import json
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cv2
import numpy as np
import pytest
import tensorflow as tf

from tpudet.detection import experiment
from tpudet.detection.commands.convert_model import main
from tpudet.detection.config import ExperimentConfig
from tpudet.detection.data.tfrecord import EncodedImage, encode_example
from tpudet.detection.inference import portable
from tpudet.detection.inference.saved_detector import read_saved_detector
from tpudet.trainkit.config.decode import load_config
from tpudet.trainkit.images.canvas import Resize, decode_to_canvas, fit, fit_short_side, stretch
from tpudet.trainkit.records import shard_path, write_shard
from tpudet.trainkit.saved_model import SavedModel

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


def test_a_description_that_nobody_named_is_replaced_only_by_that_of_its_model(
    saved_model: Path, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between the two files, the new model has none rather than that of the old one."""
    monkeypatch.setattr(portable, "_to_litert", lambda saved: b"model")
    path, description = tmp_path / "m.tflite", tmp_path / "m.tflite.json"
    description.write_text('{"mine": true}')
    for more in ([], ["--overwrite"]):
        assert main([str(saved_model), str(path), *more]) == 2
        message = f"{description} exists and is not a description of a model by tpudet"
        assert message in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["m.tflite.json"]
    assert description.read_text() == '{"mine": true}'
    description.unlink()
    for more in ([], ["--overwrite"]):
        assert main([str(saved_model), str(path), *more]) == 0
        assert json.loads(description.read_text())["precision"] == "float32"

    def fail(path: str, text: str) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(portable.storage, "write_text", fail)
    with pytest.raises(ZeroDivisionError):
        main([str(saved_model), str(path), "--overwrite"])
    assert [path.name for path in tmp_path.iterdir()] == ["m.tflite"]


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


@pytest.mark.parametrize(
    ("facts", "resize", "placement"),
    [
        ({}, fit, "resized to fit into the canvas, aspect kept"),
        ({"resize": "fit"}, fit, "resized to fit into the canvas, aspect kept"),
        ({"resize": "stretch"}, stretch, "resized to the whole canvas, aspect not kept"),
        (
            {"resize": "short_side", "short_side": 24, "long_side": 40},
            functools.partial(fit_short_side, short_side=24, long_side=40),
            "resized to 24 pixels on its shorter side, or less for at most 40 on its longer one",
        ),
        (
            {"padding_rgb": [9, 16, 104]},
            fit,
            "resized to fit into the canvas, aspect kept, at its upper left; the rest is 9 16 104",
        ),
    ],
)
def test_images_are_placed_as_in_training(
    facts: dict[str, Any],
    resize: Resize,
    placement: str,
    saved_model: Path,
    jpegs: dict[str, bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those of the calibration, and in the words of the JSON."""
    saved = read_saved_detector(str(saved_model))
    saved = saved._replace(metadata={**saved.metadata, **facts})
    given: list[np.ndarray] = []
    monkeypatch.setattr(portable, "read_saved_detector", lambda _: saved)
    monkeypatch.setattr(portable, "_to_litert", lambda _: b"")
    monkeypatch.setattr(
        portable, "_to_int8", lambda _, canvases: bytes(given.extend(canvases) or 0)
    )
    (tmp_path / "images").mkdir()
    (tmp_path / "images/tall.jpg").write_bytes(jpegs["tall"])
    path = tmp_path / "m.tflite"
    assert main([str(saved_model), str(path), "--int8", str(tmp_path / "images")]) == 0
    placed = decode_to_canvas(tf.constant(jpegs["tall"]), 64, 96, resize)
    expected = placed.image.numpy()
    rows, columns = np.rint(placed.original_size * placed.scale).astype(int)
    expected[rows:] = expected[:, columns:] = facts.get("padding_rgb", 0)
    np.testing.assert_array_equal(given, [expected])
    assert json.loads(Path(f"{path}.json").read_text())["placement"].startswith(placement)


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["data.resize.kind=stretch"],
        ["data.resize.kind=short_side", "data.resize.short_side=24", "data.resize.long_side=40"],
    ],
)
def test_an_export_tells_its_resizing_whole(
    overrides: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_config(ExperimentConfig, "quickstart", overrides=overrides)
    model = SimpleNamespace(pixel_mean=(0, 0, 0), pixel_std=(1, 1, 1))
    told: dict[str, Any] = {}
    for name, result in {
        "load_run": SimpleNamespace(config=config, class_list_text="1,cat\n"),
        "select_checkpoint": SimpleNamespace(step=1),
        "restore_task": SimpleNamespace(model=model, predict=None),
    }.items():
        monkeypatch.setattr(experiment, name, lambda *_, result=result, **__: result)
    monkeypatch.setattr(experiment, "export_saved_model", lambda **given: told.update(given))
    experiment.export(
        "run", export_root="", step="1", canvas_size=None, boxes="normalized", overwrite=False
    )
    saved = SavedModel("run", "1,cat\n", json.loads(json.dumps(told["metadata"])), "")
    assert portable._exported_resize(saved) == config.data.resize


def test_an_export_without_the_sides_of_its_resizing_is_not_calibrated(
    saved_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    saved = read_saved_detector(str(saved_model))
    old = saved._replace(metadata={**saved.metadata, "resize": "short_side"})
    monkeypatch.setattr(portable, "read_saved_detector", lambda _: old)
    assert main([str(saved_model), str(tmp_path / "m.tflite"), "--int8", str(tmp_path)]) == 2
    assert "does not say the sides of its data.resize" in capsys.readouterr().err
    description = json.loads(portable._description(old, is_int8=False))
    assert "by its shorter side" in description["placement"]


def test_what_is_refused(saved_model: Path, tmp_path: Path, capsys: Any) -> None:
    def error(*arguments: str) -> str:
        assert main([*arguments]) == 2
        return capsys.readouterr().err

    assert "must end in .tflite or .onnx" in error(str(saved_model), str(tmp_path / "m.pb"))
    assert "no SavedModel" in error(str(tmp_path), str(tmp_path / "m.onnx"))
    nowhere = str(tmp_path / "nowhere")
    there = tmp_path / "there.tflite"
    there.touch()
    said = error(str(saved_model), str(there), "--int8", nowhere)  # before images are read
    assert f"{there} exists: --overwrite replaces it" in said
    there.unlink()
    said = error(str(saved_model), str(tmp_path / "m.tflite"), "--int8", nowhere)
    assert f"{nowhere}: neither a folder of images nor a split of a prepared set" in said
    cv2.imwrite(str(tmp_path / "one.png"), np.zeros((9, 9, 3), np.uint8))
    said = error(str(saved_model), str(tmp_path / "m.onnx"), "--int8", str(tmp_path))
    assert "int8 is made for LiteRT only" in said
    assert [file.name for file in tmp_path.iterdir()] == ["one.png"]
