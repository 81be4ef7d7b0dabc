"""tpudet predict: resumed after a kill, every image accounted for, any batch, the same numbers."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from tpudet.detection.commands import gen_sub
from tpudet.detection.commands.predict import main
from tpudet.detection.inference import parts, run, stream
from tpudet.detection.inference.export import export_saved_model
from tpudet.detection.inference.predictions_file import (
    Predictions,
    read_predictions,
    write_predictions,
)
from tpudet.detection.inference.run import run_tasks
from tpudet.detection.inference.saved_detector import load_detector, read_saved_detector
from tpudet.trainkit.errors import UserError
from tpudet.trainkit.image_folder import ImageFile, list_images, read_ids
from tpudet.trainkit.saved_model import find_saved_model

CLASS_LIST = "/m/01,cat\n/m/02,dog\n/m/03,sheep\n"
SCRIPTS = Path(__file__).parents[3] / "scripts" / "inference"


@pytest.fixture
def folder(jpegs: dict[str, bytes], tmp_path: Path) -> Path:
    """Four good images and a text file."""
    directory = tmp_path / "images"
    directory.mkdir()
    for name, encoded in jpegs.items():
        (directory / f"{name}.jpg").write_bytes(encoded)
    (directory / "notes.txt").write_text("not an image")
    return directory


def run_inference(*, batch_size: int, workers: int, **task: Any) -> tuple[int, dict[str, str]]:
    """Makes one predictions file here; the number of images, and why others were left out."""
    results: list[tuple[int, dict[str, str]]] = []
    run_tasks(
        [parts.PredictionTask(**task)],
        batch_size=batch_size,
        workers=workers,
        on_finished=lambda task, count, unreadable: results.append((count, unreadable)),
    )
    return results[0]


def read(path: Path) -> Predictions:
    with path.open("rb") as file:
        return read_predictions(file, path.name)


def write_foreign_part(path: Path) -> None:
    metadata = {"key": "of another model", "unreadable": {}}
    with path.open("wb") as file:
        write_predictions(file, path.name, [[]], class_list_text=CLASS_LIST, metadata=metadata)


def assert_same(found: Predictions, expected: Predictions) -> None:
    assert [i.image_id for i in found.images] == [i.image_id for i in expected.images]
    for image, wanted in zip(found.images, expected.images, strict=True):
        assert image.labels.tolist() == wanted.labels.tolist()
        np.testing.assert_allclose(image.scores, wanted.scores, atol=1e-5)
        np.testing.assert_allclose(image.boxes_normalized, wanted.boxes_normalized, atol=1e-5)


def test_predictions_are_those_of_the_saved_model(
    saved_model: Path, folder: Path, tmp_path: Path, jpegs: dict[str, bytes], capsys: Any
) -> None:
    out = tmp_path / "out" / "p.parquet"
    out.parent.mkdir()
    assert main([str(out), str(saved_model.parent), "--images", str(folder)]) == 0
    found = read(out)
    assert [i.image_id for i in found.images] == sorted(jpegs)
    assert found.class_list_text == CLASS_LIST
    assert found.metadata["model"]["canvas_size"] == [64, 96]
    assert found.metadata["unreadable"] == {}
    signature = (model := tf.saved_model.load(str(saved_model))).signatures["serving_default"]
    outputs = signature(input=tf.constant([jpegs[name] for name in sorted(jpegs)]))
    for i, image in enumerate(found.images):
        n = int(outputs["num_detections"][i])
        assert 0 < n == len(image.labels)  # valid detections only
        boxes = outputs["detection_boxes"][i, :n].numpy()
        np.testing.assert_allclose(image.boxes_normalized, boxes[:, [1, 0, 3, 2]], atol=1e-6)
        np.testing.assert_allclose(image.scores, outputs["detection_scores"][i, :n], atol=1e-6)
    assert model is not None
    assert list(out.parent.iterdir()) == [out]
    captured = capsys.readouterr()
    assert "canvas 64x96; 4 images" in captured.out
    assert "4/4" in captured.err


def test_batches_parts_and_pixel_boxes_do_not_change_the_numbers(
    stand_in: Any, saved_model: Path, folder: Path, tmp_path: Path
) -> None:
    """Also: a pickle holds what Parquet holds, and everything runs on an object store."""
    store = "ram://inference"
    export_saved_model(
        model=stand_in.model,
        predict=stand_in.predict,
        pixel_mean=(0.5, 0.5, 0.5),
        pixel_std=(1.0, 1.0, 1.0),
        canvas_size=(64, 96),
        class_list_text=CLASS_LIST,
        directory=f"{store}/models/pixels",
        metadata={},
        boxes="pixels",
    )
    tf.io.gfile.makedirs(f"{store}/images")
    for path in folder.iterdir():
        tf.io.gfile.copy(str(path), f"{store}/images/{path.name}")
    results = []
    for directory, images, target, batch_size, images_per_part in (
        (str(saved_model), str(folder), str(tmp_path / "p.parquet"), 4, 500),
        (f"{store}/models/pixels", f"{store}/images", f"{store}/p.pkl", 3, 2),
    ):
        count, unreadable = run_inference(
            saved=read_saved_detector(find_saved_model(directory)),
            images=list_images(images, None),
            predictions_path=target,
            batch_size=batch_size,
            workers=2,
            images_per_part=images_per_part,
        )
        assert (count, unreadable) == (4, {})
        with tf.io.gfile.GFile(target, "rb") as file:
            results.append(read_predictions(file, target))
    assert_same(results[1], results[0])
    assert gen_sub.main([f"{store}/p.pkl"]) == 0
    assert sorted(tf.io.gfile.listdir(store)) == ["images", "models", "p.csv", "p.pkl"]
    with tf.io.gfile.GFile(f"{store}/p.csv") as file:
        assert [line.split(",")[0] for line in file.read().splitlines()][1:] == [
            image.image_id for image in results[0].images
        ]


def test_a_killed_run_resumes_where_it_stopped(
    saved_model: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments: dict[str, Any] = {
        "saved": read_saved_detector(str(saved_model)),
        "images": list_images(str(folder), None),
        "batch_size": 1,
        "workers": 1,
        "images_per_part": 1,
    }
    run_inference(predictions_path=str(tmp_path / "whole.parquet"), **arguments)
    calls: list[int] = []

    def counting_detector(stop_after: int) -> Any:
        detect = load_detector(arguments["saved"])

        def call(encoded: list[bytes]) -> Any:
            if len(calls) == stop_after:
                raise KeyboardInterrupt
            calls.append(len(encoded))
            return detect(encoded)

        return lambda _: call

    target = tmp_path / "p.parquet"
    monkeypatch.setattr(run, "load_detector", counting_detector(stop_after=2))
    with pytest.raises(KeyboardInterrupt):
        run_inference(predictions_path=str(target), **arguments)
    assert not target.exists()
    parts = tmp_path / "p.parquet.parts"
    assert sorted(p.name for p in parts.iterdir()) == ["part-00000.parquet", "part-00001.parquet"]
    (parts / "part-00002.parquet.tmp").write_bytes(b"cut off")  # as a kill while writing leaves it

    monkeypatch.setattr(run, "load_detector", counting_detector(stop_after=99))
    run_inference(predictions_path=str(target), **arguments)
    assert calls == [1, 1, 1, 1]  # two before, two after: none twice
    assert target.read_bytes() == (tmp_path / "whole.parquet").read_bytes()
    assert not parts.exists()


def test_parts_before_a_sigkill_are_used(saved_model: Path, folder: Path, tmp_path: Path) -> None:
    """The process kills itself with SIGKILL as its second part gets its name."""
    target = tmp_path / "p.parquet"
    program = f"""
import os, signal
from tpudet.detection.inference import parts, run, saved_detector
from tpudet.trainkit import image_folder
from tpudet.trainkit.files import storage
rename = storage.rename
def rename_and_die(source, path):
    rename(source, path)
    if path.endswith("part-00001.parquet"):
        os.kill(os.getpid(), signal.SIGKILL)
storage.rename = rename_and_die
task = parts.PredictionTask(
    saved=saved_detector.read_saved_detector({str(saved_model)!r}),
    images=image_folder.list_images({str(folder)!r}, None),
    predictions_path={str(target)!r}, images_per_part=1)
run.run_tasks([task], batch_size=2, workers=2, on_finished=print)
"""
    killed = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL
    written = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "p.parquet.parts").iterdir()}
    assert sorted(written) == ["part-00000.parquet", "part-00001.parquet"]
    count, _ = run_inference(
        saved=read_saved_detector(str(saved_model)),
        images=list_images(str(folder), None),
        predictions_path=str(target),
        batch_size=2,
        workers=2,
        images_per_part=1,
    )
    assert count == 4
    assert len(read(target).images) == 4


def test_parts_of_another_image_list_are_refused_unless_overwritten(
    saved_model: Path, folder: Path, tmp_path: Path, capsys: Any
) -> None:
    target = tmp_path / "p.parquet"
    arguments: dict[str, Any] = {"saved": read_saved_detector(str(saved_model)), "workers": 1}
    arguments |= {"predictions_path": str(target), "batch_size": 1}
    run_inference(images=list_images(str(folder), None)[:1], **arguments)
    left = tmp_path / "p.parquet.parts"
    left.mkdir()
    write_foreign_part(left / "part-00000.parquet")
    command = [str(target), str(saved_model), "--images", str(folder)]
    assert main(command) == 2
    assert "p.parquet exists: --overwrite replaces it" in capsys.readouterr().err
    target.unlink()
    assert main(command) == 2
    others = "another model, another list of images or another --precision; --overwrite"
    assert others in capsys.readouterr().err
    assert main([*command, "--overwrite"]) == 0
    assert len(read(target).images) == 4


def test_a_second_run_is_told_who_writes_the_file(
    saved_model: Path, folder: Path, tmp_path: Path, capsys: Any, hold_claim: Any
) -> None:
    target = tmp_path / "p.parquet"
    command = [str(target), str(saved_model), "--images", str(folder)]
    with hold_claim(f"{target}.claim.json") as process:
        assert main([*command, "--overwrite"]) == 2
        assert f"{target} is being written by process {process} on" in capsys.readouterr().err
    assert not list(tmp_path.glob("p.parquet*"))
    assert main(command) == 0


@pytest.mark.parametrize("taken", ["a part", "the claim", "the file"])
def test_what_another_process_changes_is_never_joined(
    taken: str, saved_model: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a process that ignores claims, or took this one's while it was paused."""
    target = tmp_path / "p.parquet"
    saved = read_saved_detector(str(saved_model))
    detect, calls = load_detector(saved), []

    def call(encoded: list[bytes]) -> Any:
        calls.append(encoded)
        if len(calls) == 4 and taken == "a part":
            part = tmp_path / "p.parquet.parts/part-00000.parquet"
            while not part.exists():
                time.sleep(0.01)
            write_foreign_part(part)
        elif len(calls) == 2 and taken == "the claim":
            Path(f"{target}.claim.json").unlink()
        return detect(encoded)

    monkeypatch.setattr(run, "load_detector", lambda _: call)
    arguments: dict[str, Any] = {"saved": saved, "images": list_images(str(folder), None)}
    arguments |= {"predictions_path": str(target), "batch_size": 1, "workers": 1}
    if taken == "the file":
        target.write_bytes(b"of another run")  # finished since the run was planned
    message = {
        "a part": "part-00000.parquet was replaced by a run with another model",
        "the claim": "p.parquet is no longer claimed",
        "the file": "p.parquet exists: --overwrite replaces it",
    }[taken]
    with pytest.raises(UserError, match=message):
        run_inference(images_per_part=1, **arguments)
    assert target.exists() == (taken == "the file")
    left = [path for path in tmp_path.glob("p.parquet.parts/*")]
    assert len(left) <= {"a part": 4, "the claim": 1, "the file": 0}[taken]


def test_a_part_that_is_replaced_while_the_parts_are_joined(
    saved_model: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checked once more as it is read: the first look at all of them may be minutes ago."""
    real = parts.read_predictions

    def read_what_another_wrote(*arguments: Any) -> Any:
        found = real(*arguments)
        return found._replace(metadata=found.metadata | {"key": "of another run"})

    monkeypatch.setattr(parts, "read_predictions", read_what_another_wrote)
    saved, target = read_saved_detector(str(saved_model)), tmp_path / "p.parquet"
    with pytest.raises(UserError, match="part-00000.parquet was replaced by a run with another"):
        run_inference(
            saved=saved,
            images=list_images(str(folder), None),
            predictions_path=str(target),
            batch_size=4,
            workers=1,
        )
    assert not target.exists()


def test_a_model_that_is_exported_anew_during_the_run_is_refused(
    saved_model: Path, folder: Path, tmp_path: Path
) -> None:
    before = read_saved_detector(str(saved_model))._replace(fingerprint="of the export before")
    with pytest.raises(UserError, match="is not the model that the run started with"):
        run_inference(
            saved=before,
            images=list_images(str(folder), None),
            predictions_path=str(tmp_path / "p.parquet"),
            batch_size=4,
            workers=1,
        )
    assert list(tmp_path.glob("p.parquet*")) == [tmp_path / "p.parquet.parts"]


def test_unreadable_images_are_named_and_others_repaired(
    saved_model: Path, folder: Path, tmp_path: Path, photos: Any, capsys: Any
) -> None:
    (folder / "cut.jpg").write_bytes((folder / "wide.jpg").read_bytes()[:900])
    (folder / "empty.png").write_bytes(b"")
    (folder / "page.jpg").write_text("<html>not found</html>")
    (folder / "folder.jpg").mkdir()
    photo = Image.fromarray(photos["wide"])
    photo.convert("CMYK").save(folder / "cmyk.jpg", quality=98)
    exif = Image.Exif()
    exif[0x0112] = 6  # stored lying on its side, upright after a quarter turn clockwise
    photo.rotate(90, expand=True).save(folder / "turned.jpg", quality=98, exif=exif)
    photo.save(folder / "webp.JPG", format="webp", lossless=True)
    target = tmp_path / "p.parquet"
    assert main([str(target), str(saved_model), "--images", str(folder)]) == 0
    found = read(target)
    unreadable = ["cut.jpg", "empty.png", "folder.jpg", "page.jpg"]
    assert sorted(found.metadata["unreadable"]) == unreadable
    errors = capsys.readouterr().err
    assert "WARNING: 4 images could not be read" in errors
    assert "empty.png: empty file" in errors
    images = {image.image_id: image for image in found.images}
    assert sorted(images) == ["cmyk", "small", "square", "tall", "turned", "webp", "wide"]
    for name in ("turned", "webp", "cmyk"):  # the same image, so nearly the same detections
        assert images[name].labels.tolist() == images["wide"].labels.tolist()
        np.testing.assert_allclose(images[name].scores, images["wide"].scores, atol=0.02)
        boxes = images[name].boxes_normalized
        np.testing.assert_allclose(boxes, images["wide"].boxes_normalized, atol=0.02)


def test_only_the_ids_that_are_asked_for(
    saved_model: Path, folder: Path, tmp_path: Path, capsys: Any
) -> None:
    ids = tmp_path / "sample_submission.csv"
    ids.write_text("ImageId,PredictionString\nwide,\nsmall,\n")
    assert read_ids(str(ids)) == ["wide", "small"]
    command = [str(tmp_path / "p.pkl"), str(saved_model), "--images", str(folder)]
    assert main([*command, "--ids", str(ids), "--dry_run"]) == 0
    assert "2 images" in capsys.readouterr().out
    assert not (tmp_path / "p.pkl").exists()
    assert main([*command, "--ids", str(ids)]) == 0
    assert [image.image_id for image in read(tmp_path / "p.pkl").images] == ["small", "wide"]
    ids.write_text("wide\nmissing\n")
    assert main([*command, "--ids", str(ids), "--overwrite"]) == 2
    assert "missing: no such image in" in capsys.readouterr().err


def test_wrong_input_is_explained(
    saved_model: Path, folder: Path, tmp_path: Path, capsys: Any
) -> None:
    def message_of(*arguments: object) -> str:
        assert main([str(a) for a in arguments]) == 2
        return capsys.readouterr().err

    out = tmp_path / "p.parquet"
    assert "no directory" in message_of(out, tmp_path / "none", "--images", folder)
    text = message_of(folder, saved_model, "--images", folder)
    assert f"{folder} is a folder: name a file in it" in text
    text = message_of(tmp_path / "p.csv", saved_model, "--images", folder)
    assert "p.csv: predictions are written as Parquet" in text
    assert "tpudet gen_sub makes a submission" in text
    text = message_of(out, folder, "--images", folder)
    assert "no SavedModel (saved_model.pb) in" in text
    assert "there is: notes.txt, small.jpg" in text
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "no image in" in message_of(out, saved_model, "--images", empty)
    with pytest.raises(SystemExit, match="2"):
        main([str(out), str(saved_model), "--batch_size", "0"])
    assert "`0` is not an integer of at least 1" in capsys.readouterr().err
    (folder / "wide.png").write_bytes((folder / "wide.jpg").read_bytes())
    assert "wide: wide.jpg and wide.png have one id" in message_of(
        out, saved_model, "--images", folder
    )
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "saved_model.pb").write_bytes(b"")
    assert "bare has no assets/classes.csv" in message_of(
        out, tmp_path / "bare", "--images", folder
    )
    shutil.copytree(saved_model, tmp_path / "edited")
    (tmp_path / "edited/assets/classes.csv").write_text(CLASS_LIST.replace("cat", "cow"))
    assert "is not the list that the model was exported with" in message_of(
        out, tmp_path / "edited", "--images", folder
    )
    assert not out.exists()


def test_the_newest_saved_model_is_taken(tmp_path: Path) -> None:
    for name, age in (("b/new", 0), ("a/old", 60), ("c/older", 90), ("c/.half.tmp", -5)):
        path = tmp_path / name / "saved_model.pb"
        path.parent.mkdir(parents=True)
        path.write_bytes(b"")
        os.utime(path, (path.stat().st_atime, path.stat().st_mtime - age))
    assert find_saved_model(str(tmp_path)) == str(tmp_path / "b" / "new")
    assert find_saved_model(str(tmp_path / "c")) == str(tmp_path / "c" / "older")


def test_an_image_that_only_tensorflow_refuses_does_not_take_its_batch_along(
    saved_model: Path, jpegs: dict[str, bytes]
) -> None:
    detect = load_detector(read_saved_detector(str(saved_model)))
    batch = [jpegs["wide"], b"no image", jpegs["small"]]
    images = [(ImageFile(str(i), f"{i}.jpg"), encoded) for i, encoded in enumerate(batch)]
    wide, refused, small = stream._detect_each(images, detect)
    assert isinstance(refused, str)
    assert refused.startswith("TensorFlow cannot decode it: ")
    for found, name in ((wide, "wide"), (small, "small")):
        assert not isinstance(found, str)
        np.testing.assert_allclose(found[1], detect([jpegs[name]])[0][1], atol=1e-5)


def test_the_scripts_run(saved_model: Path, folder: Path, tmp_path: Path) -> None:
    arguments = {"inference.py": [saved_model, "--images", folder], "gen_sub.py": []}
    for script, more in arguments.items():
        command = [sys.executable, SCRIPTS / script, "p.parquet", *more]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    assert all(os.access(SCRIPTS / name, os.X_OK) for name in ("inference.py", "gen_sub.py"))
    lines = (tmp_path / "p.csv").read_text().splitlines()
    assert lines[0] == "ImageId,PredictionString"
    assert [line.split(",")[0] for line in lines[1:]] == ["small", "square", "tall", "wide"]
    mid, *numbers = lines[1].split(",")[1].split()[:6]
    assert mid in ("/m/01", "/m/02", "/m/03")
    assert all(len(number) == 7 and 0 <= float(number) <= 1 for number in numbers)
