"""A SavedModel outputs what the evaluation saw, in any batch, and stands on its own."""

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import tensorflow as tf

from tpudet.detection.data.pipeline import eval_dataset
from tpudet.detection.data.tfrecord import EncodedImage, encode_example
from tpudet.detection.evaluation.ground_truth import load_ground_truth
from tpudet.detection.inference.export import export_saved_model
from tpudet.detection.inference.saved_detector import load_detector, read_saved_detector
from tpudet.detection.inference.view_settings import ViewSettings
from tpudet.detection.inference.views import load_view_detector
from tpudet.detection.ops.boxes import padded_images
from tpudet.detection.ops.numpy_boxes import boxes_to_original
from tpudet.detection.ops.numpy_masks import decode_rle
from tpudet.detection.types import Batch, Detections
from tpudet.trainkit.files import storage
from tpudet.trainkit.files.claims import ClaimError
from tpudet.trainkit.images.canvas import decode_to_canvas, stretch
from tpudet.trainkit.records import shard_path, write_shard
from tpudet.trainkit.saved_model import SavedModelError

CLASS_LIST = "/m/01,cat\n/m/02,dog\n/m/03,sheep\n"
NAMES = ["cat", "dog", "sheep"]


def call(model: Any, inputs: Any, signature: str = "serving_default") -> dict[str, np.ndarray]:
    outputs = model.signatures[signature](input=tf.constant(inputs))
    return {name: tensor.numpy() for name, tensor in outputs.items()}


@pytest.fixture(scope="module")
def loaded(saved_model: Path) -> Any:
    return tf.saved_model.load(str(saved_model))


@pytest.fixture
def shards(jpegs: dict[str, bytes], photos: dict[str, np.ndarray], tmp_path: Path) -> list[str]:
    """The images in two shards; the last one has no object."""
    examples = [
        encode_example(
            EncodedImage(
                source_id=name,
                filename=f"{name}.jpg",
                encoded=jpegs[name],
                format="jpeg",
                height=photo.shape[0],
                width=photo.shape[1],
            ),
            boxes_normalized=np.array([[0.1, 0.2, 0.5, 0.6], [0, 0, 1, 1]])[: 2 if i < 3 else 0],
            labels=[2, 3][: 2 if i < 3 else 0],
            texts=["dog", "sheep"][: 2 if i < 3 else 0],
            is_crowd=[False, True][: 2 if i < 3 else 0],
            areas=[16.0, 9.0][: 2 if i < 3 else 0],
        )
        for i, (name, photo) in enumerate(photos.items())
    ]
    paths = [shard_path(str(tmp_path / "val_x"), i, 2) for i in range(2)]
    for path, part in zip(paths, (examples[:2], examples[2:]), strict=True):
        write_shard(path, part)
    return paths


def test_jpeg_bytes_give_what_the_evaluation_path_gives(
    stand_in: Any, loaded: Any, jpegs: dict[str, bytes], shards: list[str]
) -> None:
    outputs = call(loaded, list(jpegs.values()))
    dataset = eval_dataset(shards=shards, canvas_size=(64, 96), batch_size=3, max_instances=5)
    num_compared = 0
    for i, batch in enumerate(dataset):
        detections = stand_in.predict(batch)
        boxes = boxes_to_original(
            np.asarray(detections.boxes),
            scales=np.asarray(batch.scales),
            offsets=np.asarray(batch.offsets),
            sizes=np.asarray(batch.original_sizes),
        )
        for row, record in enumerate(np.asarray(batch.records)):
            if record < 0:
                continue
            image = 3 * i + row
            n = int(detections.num_detections[row])
            num_compared += n
            assert outputs["num_detections"][image] == n
            height, width = outputs["image_sizes"][image]
            pixels = outputs["detection_boxes"][image] * [height, width, height, width]
            np.testing.assert_allclose(pixels[:n], boxes[row, :n], atol=1e-4)
            for key, column in (("scores", detections.scores), ("classes", detections.classes)):
                found = outputs[f"detection_{key}"][image]
                np.testing.assert_allclose(found[:n], np.asarray(column)[row, :n], atol=1e-4)
                assert (found[n:] == 0).all()
            assert (pixels[n:] == 0).all()
    assert 4 < num_compared < 4 * 7  # some rows are valid and some are not


def test_examples_and_canvases_give_what_files_give(loaded: Any, jpegs: dict[str, bytes]) -> None:
    """A tf.Example as its file; a canvas as the image that it is, to a thousandth of its side."""
    files = list(jpegs.values())
    examples = [
        encode_example(
            EncodedImage(
                source_id="1", filename="1.jpg", encoded=file, format="jpeg", height=1, width=1
            ),
            boxes_normalized=np.zeros((0, 4)),
            labels=[],
            texts=[],
            is_crowd=[],
            areas=[],
        )
        for file in files
    ]
    expected = call(loaded, files)
    for key, value in loaded.signatures["tf_example"](input=tf.constant(examples)).items():
        np.testing.assert_array_equal(value, expected[key], err_msg=key)
    canvases = tf.stack([decode_to_canvas(file, 64, 96).image for file in files])
    found = loaded.signatures["canvas"](input=canvases)
    assert found["image_sizes"].numpy().tolist() == [[64, 96]] * len(files)
    resized = loaded.signatures["image_tensor"](input=canvases)
    normalized = tf.cast(canvases, tf.float32) / 255.0 - 0.5  # as the stand-in does
    raw = loaded.signatures["raw_image_tensor"](input=normalized)
    for key, value in found.items():
        np.testing.assert_allclose(value, resized[key], atol=1e-6, err_msg=key)
        np.testing.assert_allclose(value, raw[key], atol=1e-5, err_msg=key)


def test_ground_truth_of_all_images_in_pixels(shards: list[str]) -> None:
    truth = load_ground_truth(shards, NAMES)
    assert truth.records.tolist() == [0, 1, 2**32, 2**32 + 1]
    assert truth.sizes.tolist() == [[90, 200], [150, 70], [64, 64], [40, 33]]
    assert truth.image_indices.tolist() == [0, 0, 1, 1, 2, 2]
    np.testing.assert_allclose(truth.boxes[0], [9, 40, 45, 120], rtol=1e-6)
    np.testing.assert_allclose(truth.boxes[5], [0, 0, 64, 64], rtol=1e-6)
    assert truth.classes.tolist() == [2, 3] * 3
    assert truth.is_crowd.tolist() == [False, True] * 3
    assert truth.areas.tolist() == [16, 9] * 3
    with pytest.raises(
        ValueError, match=r"image wide has class ids 3, but the class list ends at 2"
    ):
        load_ground_truth(shards, NAMES[:2])


@pytest.mark.parametrize(
    "names", [["wide"], ["tall", "wide"], ["small", "small", "tall", "square"]]
)
def test_any_batch_size(loaded: Any, jpegs: dict[str, bytes], names: list[str]) -> None:
    together = call(loaded, [jpegs[name] for name in names])
    for i, name in enumerate(names):
        for key, value in call(loaded, [jpegs[name]]).items():
            np.testing.assert_allclose(together[key][i], value[0], atol=1e-5)


def test_pixels_of_an_image_tensor(loaded: Any, photos: dict[str, np.ndarray]) -> None:
    images = np.stack([photos["square"], photos["square"][::-1]])
    tensors = call(loaded, images, "image_tensor")
    pngs = [cv2.imencode(".png", image[..., ::-1])[1].tobytes() for image in images]
    for key, value in call(loaded, pngs).items():
        np.testing.assert_allclose(tensors[key], value, atol=1e-4)
    assert tensors["image_sizes"].tolist() == [[64, 64], [64, 64]]
    assert tensors["detection_boxes"].dtype == np.float32
    assert tensors["detection_classes"].dtype == tensors["num_detections"].dtype == np.int32


def test_pixel_boxes_of_another_canvas_on_an_object_store(
    stand_in: Any, jpegs: dict[str, bytes]
) -> None:
    """The canvas given is the canvas used, and nothing bypasses tf.io.gfile."""
    export_saved_model(
        model=stand_in.model,
        predict=stand_in.predict,
        pixel_mean=(0.5, 0.5, 0.5),
        pixel_std=(1.0, 1.0, 1.0),
        canvas_size=(128, 128),
        class_list_text=CLASS_LIST,
        directory="ram://models/final/x",
        metadata={"step": 1},
        boxes="pixels",
    )
    assert tf.io.gfile.listdir("ram://models/final") == ["x"]  # and nothing temporary
    outputs = call(tf.saved_model.load("ram://models/final/x"), [jpegs["wide"]])
    assert outputs["detection_boxes"].max() > 1
    seen = stand_in.predict(batch_of(jpegs["wide"], 128, 128))
    n = int(seen.num_detections[0])
    assert outputs["num_detections"].tolist() == [n]
    expected = np.clip(np.asarray(seen.boxes)[0, :n] / (128 / 200), 0, [90, 200, 90, 200])
    np.testing.assert_allclose(outputs["detection_boxes"][0, :n], expected, rtol=0.02, atol=0.5)
    with tf.io.gfile.GFile("ram://models/final/x/assets/metadata.json") as file:
        assert json.load(file)["canvas_size"] == [128, 128]


def test_the_padding_of_an_export_is_that_of_its_files(
    stand_in: Any, jpegs: dict[str, bytes], tmp_path: Path
) -> None:
    """The detector's score is the mean of what the network sees."""
    mean = (0.485, 0.456, 0.406)

    def predict(batch: Batch) -> Detections:
        seen = padded_images(batch, "mean", mean=mean)
        ones = tf.ones([tf.shape(seen)[0], 1])
        return Detections(
            boxes=ones[:, :, None] * [[[0.0, 0.0, 64.0, 96.0]]],
            scores=tf.reduce_mean(seen, axis=[1, 2, 3])[:, None] / 255.0,
            classes=tf.cast(ones, tf.int32),
            num_detections=tf.cast(ones[:, 0], tf.int32),
        )

    directory = export_saved_model(
        model=stand_in.model,
        predict=predict,
        padding="mean",
        pixel_mean=mean,
        pixel_std=(1.0, 1.0, 1.0),
        canvas_size=(64, 96),
        class_list_text=CLASS_LIST,
        directory=str(tmp_path / "x"),
        metadata={"step": 1},
        boxes="normalized",
    )
    saved = read_saved_detector(directory)
    assert saved.metadata["padding_rgb"] == [124, 116, 104]
    (whole,) = load_detector(saved)([jpegs["tall"]])
    (view,) = load_view_detector(saved, ViewSettings(), 1)([jpegs["tall"]])
    assert view.scores[0] == pytest.approx(whole.scores[0], abs=0.5 / 255)
    black = decode_to_canvas(tf.constant(jpegs["tall"]), 64, 96).image
    assert np.mean(black) / 255 < whole.scores[0] - 0.1


def test_an_exported_model_resizes_as_it_was_trained(
    stand_in: Any, jpegs: dict[str, bytes], tmp_path: Path
) -> None:
    directory = export_saved_model(
        model=stand_in.model,
        predict=stand_in.predict,
        pixel_mean=(0.5, 0.5, 0.5),
        pixel_std=(1.0, 1.0, 1.0),
        canvas_size=(64, 96),
        resize=stretch,
        class_list_text=CLASS_LIST,
        directory=str(tmp_path / "x"),
        metadata={"step": 1},
        boxes="normalized",
    )
    exported = tf.saved_model.load(directory)
    files = list(jpegs.values())
    outputs = call(exported, files)
    # The canvas counts as the original there: the same in shares of the sides.
    canvases = tf.stack([decode_to_canvas(file, 64, 96, stretch).image for file in files])
    expected = exported.signatures["canvas"](input=canvases)
    assert outputs["num_detections"].sum() > 4
    for key in ("num_detections", "detection_boxes", "detection_scores", "detection_classes"):
        np.testing.assert_allclose(outputs[key], expected[key], atol=1e-5, err_msg=key)
    # Each image reaches both far sides of the canvas.
    assert np.asarray(canvases)[:, -1].any(axis=(1, 2)).all()
    assert np.asarray(canvases)[:, :, -1].any(axis=(1, 2)).all()


def batch_of(encoded: bytes, height: int, width: int) -> Any:
    """A canvas made by OpenCV, not by the code under test."""
    image: Any = cv2.imdecode(np.frombuffer(encoded, np.uint8), cv2.IMREAD_COLOR_RGB)
    scale = min(height / image.shape[0], width / image.shape[1])
    image = cv2.resize(image, None, fx=scale, fy=scale, interpolation=cv2.INTER_LINEAR)
    canvas = np.zeros((1, height, width, 3), np.uint8)
    canvas[0, : image.shape[0], : image.shape[1]] = image
    return Batch(canvas, *[None] * 7)


def test_assets_say_what_the_model_is(saved_model: Path) -> None:
    assert (saved_model / "assets/classes.csv").read_text() == CLASS_LIST
    assert json.loads((saved_model / "assets/metadata.json").read_text()) == {
        "version": "stand_in",
        "step": 12,
        "canvas_size": [64, 96],
        "boxes": "normalized",
        "padding_rgb": [0, 0, 0],
        "max_detections": 7,
        "classes_sha256": hashlib.sha256(CLASS_LIST.encode()).hexdigest(),
    }


def test_it_loads_without_keras_and_without_the_toolkit(
    saved_model: Path, jpegs: dict[str, bytes], loaded: Any, tmp_path: Path
) -> None:
    (tmp_path / "image.jpg").write_bytes(jpegs["wide"])
    program = f"""
import sys
for name in ("keras", "tpudet"):
    sys.modules[name] = None  # importing it raises ImportError
import tensorflow as tf
model = tf.saved_model.load({str(saved_model)!r})
encoded = tf.io.read_file({str(tmp_path / "image.jpg")!r})
outputs = model.signatures["serving_default"](input=encoded[None])
print(outputs["detection_scores"].numpy()[0, 0])
"""
    out = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert out.returncode == 0, out.stderr[-2000:]
    expected = call(loaded, [jpegs["wide"]])["detection_scores"][0, 0]
    assert float(out.stdout) == pytest.approx(float(expected), abs=1e-5)


def test_nothing_appears_under_the_final_name_before_it_is_whole(
    stand_in: Any, saved_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments: dict[str, Any] = {
        "model": stand_in.model,
        "predict": stand_in.predict,
        "pixel_mean": (0.5, 0.5, 0.5),
        "pixel_std": (1.0, 1.0, 1.0),
        "canvas_size": (64, 64),
        "class_list_text": CLASS_LIST,
        "metadata": {},
        "boxes": "pixels",
    }
    with pytest.raises(FileExistsError, match="one exists"):
        export_saved_model(directory=str(saved_model), **arguments)
    with pytest.raises(ValueError, match=r"metadata sets \['boxes'\]"):
        export_saved_model(directory=str(tmp_path / "x"), **{**arguments, "metadata": {"boxes": 1}})

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(storage, "rename", killed)
        with pytest.raises(KeyboardInterrupt):
            export_saved_model(directory=str(tmp_path / "x"), **arguments)
    assert not (tmp_path / "x").exists()
    export_saved_model(directory=str(tmp_path / "x"), **arguments)
    assert [p.name for p in tmp_path.iterdir()] == ["x"]


def test_a_folder_behind_a_link_is_replaced_and_the_link_stays(
    stand_in: Any, saved_model: Path, tmp_path: Path, hold_claim: Any
) -> None:
    """The old model is removed once the new one has its name, and nothing else is."""
    shutil.copytree(saved_model, tmp_path / "elsewhere/model")
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "elsewhere/model")

    def export(directory: Path) -> None:
        export_saved_model(
            model=stand_in.model,
            predict=stand_in.predict,
            pixel_mean=(0.5, 0.5, 0.5),
            pixel_std=(1.0, 1.0, 1.0),
            canvas_size=(64, 64),
            class_list_text=CLASS_LIST,
            metadata={},
            boxes="pixels",
            directory=str(directory),
            overwrite=True,
        )

    claim = tmp_path / "elsewhere/.model.claim.json"  # that of the folder itself
    with hold_claim(str(claim)) as process, pytest.raises(ClaimError) as error:
        export(link)
    assert f"model is being written by process {process} on" in str(error.value)
    export(link)
    assert link.is_symlink()
    assert read_saved_detector(str(link)).metadata["boxes"] == "pixels"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["elsewhere", "link"]
    assert [path.name for path in (tmp_path / "elsewhere").iterdir()] == ["model"]
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.txt").write_text("")
    for taken in (precious, precious / "thesis.txt"):
        with pytest.raises(FileExistsError, match="is not a SavedModel, so it is not replaced"):
            export(taken)
    assert (precious / "thesis.txt").exists()


@pytest.mark.parametrize("name", ["variables/variables.data-00000-of-00001", "saved_model.pb"])
def test_half_a_copy_is_recognised(name: str, saved_model: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(saved_model, copy)
    content = (copy / name).read_bytes()
    (copy / name).write_bytes(content[: len(content) // 2])
    with pytest.raises(SavedModelError, match=rf"copy is incomplete: {name} has .* instead of"):
        read_saved_detector(str(copy))
    (copy / name).write_bytes(content)
    index = copy / "variables/variables.index"
    index.write_bytes(bytes(index.stat().st_size))
    with pytest.raises(SavedModelError, match=r"variables\.index is of another export"):
        read_saved_detector(str(copy))
    index.unlink()
    with pytest.raises(SavedModelError, match=r"has no variables/variables\.index"):
        read_saved_detector(str(copy))


def test_damage_that_only_shows_when_loading_is_said_in_words(
    saved_model: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(saved_model, copy)
    data = copy / "variables/variables.data-00000-of-00001"
    data.write_bytes(bytes(data.stat().st_size))
    saved = read_saved_detector(str(copy))
    with pytest.raises(SavedModelError, match="copy cannot be loaded: .*tpudet export"):
        load_detector(saved)


def test_masks_are_exported_and_pasted_into_the_image(
    stand_in: Any, jpegs: dict[str, bytes], photos: dict[str, np.ndarray], tmp_path: Path
) -> None:
    """A stand-in whose masks cover the left half of each box."""

    def predict(batch: Batch) -> Detections:
        detections = stand_in.predict(batch)
        mask = np.repeat([[1.0, 0.0]], [8], axis=0).repeat(4, axis=1)  # 8 x 8
        ones = tf.ones_like(detections.scores)[:, :, None, None]
        return detections._replace(masks=ones * mask.astype("f4"))

    directory = export_saved_model(
        model=stand_in.model,
        predict=predict,
        pixel_mean=(0.5, 0.5, 0.5),
        pixel_std=(1.0, 1.0, 1.0),
        canvas_size=(64, 96),
        class_list_text=CLASS_LIST,
        directory=str(tmp_path / "masks"),
        metadata={},
        boxes="normalized",
    )
    saved = read_saved_detector(directory)
    assert saved.metadata["mask_side"] == 8
    outputs = call(tf.saved_model.load(directory), [*jpegs.values()])
    num_valid = outputs["num_detections"]
    assert outputs["detection_masks"].shape == (4, 7, 8, 8)
    for masks, n in zip(outputs["detection_masks"], num_valid, strict=True):
        assert (masks[:n, :, :4] == 1).all()
        assert (masks[n:] == 0).all()
    for name, found in zip(jpegs, load_detector(saved)([*jpegs.values()]), strict=True):
        height, width = photos[name].shape[:2]
        assert found.masks is not None
        for rle, box in zip(found.masks, found.boxes_normalized, strict=True):
            assert rle["size"] == [height, width]
            x1, y1, x2, y2 = box * [width, height, width, height]
            rows, columns = np.nonzero(decode_rle(rle))
            assert len(rows) == pytest.approx((x2 - x1) / 2 * (y2 - y1), abs=1 + y2 - y1 + x2 - x1)
            assert columns.max(initial=0) <= (x1 + x2) / 2
            assert rows.max(initial=0) <= y2
