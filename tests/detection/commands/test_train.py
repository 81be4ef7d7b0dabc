"""tpudet train, evaluate and export: shipped configs, resuming, all on ram://, wrong input."""

import json
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tpudet.detection import build_detector, experiment
from tpudet.detection.commands import evaluate, export, train
from tpudet.detection.config import load_experiment
from tpudet.detection.data.pipeline import eval_dataset
from tpudet.detection.data.tfrecord import parse_example
from tpudet.detection.inference.saved_detector import read_saved_detector
from tpudet.detection.ops.numpy_boxes import boxes_to_original
from tpudet.trainkit.record_splits import find_split
from tpudet.trainkit.records import read_records
from tpudet.trainkit.training.model_dir import load_run, select_checkpoint

NARROW = {
    "model.neck.num_filters": "16",
    "model.neck.num_repeats": "1",
    "model.head.num_filters": "16",
    "model.head.num_convs": "1",
}
# With mosaic, BiFPN, and NAS-FPN with DropBlock and AutoAugment; all files would take half an hour.
VERSIONS = {
    "mosaic_r18_fpn_320": {},
    "d0_efficientdet_512": NARROW | {"model.neck.kind": "bifpn"},
    "2.6.1_r50_nas_fpn_drop_block_step_640": NARROW | {"model.neck.kind": "nas_fpn"},
}
# Small enough for a test on two cores, and still every part of the experiment.
TINY = {
    "data.canvas_size": "[128, 128]",
    "train.batch_size": "2",
    "train.total_steps": "2",
    "train.iterations_per_loop": "1",
    "train.log_every_steps": "1",
    "evaluation.schedule.batch_size": "2",
    "evaluation.schedule.num_images": "2",
}


def flags(values: dict[str, str]) -> list[str]:
    return [text for key, value in values.items() for text in ("--set", f"{key}={value}")]


def read_ledger(model_dir: str) -> list[dict]:
    with tf.io.gfile.GFile(f"{model_dir}/metrics.jsonl") as file:
        return [json.loads(line) for line in file.read().splitlines()]


@pytest.mark.slow  # a minute each; test_every_config takes a step of every kind
@pytest.mark.parametrize("version", VERSIONS)
def test_a_config_trains_and_evaluates_through_the_command(
    version: str, sample_part: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model_dir = str(tmp_path / "run")
    command = ["--config", version, "--model_dir", model_dir]
    command += flags(TINY | VERSIONS[version] | {"data.directory": sample_part})
    assert train.main(command) == 0
    assert "all 2 steps are warm-up, " in capsys.readouterr().out
    kinds = [(line["kind"], line["step"]) for line in read_ledger(model_dir)]
    assert kinds == [("state", 0), ("train", 1), ("train", 2), ("eval", 2), ("state", 2)]
    assert (tmp_path / "run/detections.png").stat().st_size > 1000
    assert "Evaluated on val at step 2." in (tmp_path / "run/report.html").read_text()
    charts = ("losses", "metrics", "precision_recall", "f1", "confusions")
    assert all((tmp_path / f"run/{name}.png").exists() for name in charts)
    assert (tmp_path / "run/classes.csv").read_text() == Path(
        sample_part, "classes.csv"
    ).read_text()


def test_the_whole_loop_runs_on_a_file_system_in_memory(
    sample_part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    root = "ram://whole_loop"
    part = f"{root}/converted/tiny"
    tf.io.gfile.makedirs(part)
    # Sorted: to ram:// a file exists where the name of another begins with its own: of its index.
    for name in sorted(tf.io.gfile.listdir(sample_part)):
        tf.io.gfile.copy(f"{sample_part}/{name}", f"{part}/{name}")
    model_dir = f"{root}/saved/quickstart-tiny"
    command = ["--config", "quickstart", "--model_dir", model_dir]
    small = TINY | {"data.directory": part, "evaluation.schedule.every_steps": "1"}
    small |= {"model.min_level": "3", "model.max_level": "3"}  # traced five times
    small["model.postprocess.score_threshold"] = "0.0"  # so little training gives low scores
    small["model.postprocess.class_agnostic"] = "true"
    assert train.main([*command, *flags(small)]) == 0
    assert [(line["kind"], line["step"]) for line in read_ledger(model_dir)] == [
        *(("state", 0), ("train", 1), ("eval", 1), ("train", 2), ("eval", 2), ("state", 2)),
    ]
    assert tf.io.gfile.stat(f"{model_dir}/detections.png").length > 1000
    assert train.main([*command, *flags(small | {"train.total_steps": "3"})]) == 0
    evaluated = [line["step"] for line in read_ledger(model_dir) if line["kind"] == "eval"]
    assert evaluated == [1, 2, 3]
    assert evaluate.main(["--model_dir", model_dir, "--step", "best"]) == 0
    command = ["--model_dir", model_dir, "--export_root", f"{root}/final"]
    assert export.main([*command, "--resolution", "124"]) == 0
    said = "Canvas 124x124 -> 128x128: rounded up to multiples of 8, the stride of the model"
    assert said in capsys.readouterr().out
    check_export_equals_evaluation(f"{root}/final/quickstart-tiny-128", model_dir, part)
    metadata = read_saved_detector(f"{root}/final/quickstart-tiny-128").metadata
    assert (metadata["class_agnostic"], metadata["nms_iou_threshold"]) == (True, 0.5)  # for --tta
    check_export_is_of_this_run(model_dir, root)
    check_a_dry_run_says_what_a_run_would(model_dir, small, capsys)


def check_export_is_of_this_run(model_dir: str, root: str) -> None:
    """`train --export` replaces it for this run only: others may have its name."""
    config = load_experiment(f"{model_dir}/config.yaml")
    experiment.check_export(config, model_dir=model_dir, export_root=f"{root}/final")
    other = model_dir.replace("/saved/", "/others/")
    with pytest.raises(FileExistsError, match=f"of the run {model_dir}, not of {other}"):
        experiment.check_export(config, model_dir=other, export_root=f"{root}/final")


def check_a_dry_run_says_what_a_run_would(
    model_dir: str, settings: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    changed = settings | {"model.normalization": "lite", "data.eval_split": "train"}
    command = ["--config", "quickstart", "--model_dir", model_dir, "--dry_run"]
    assert train.main([*command, *flags(changed)]) == 2
    said = capsys.readouterr()
    assert "data.eval_split train is also trained on" in said.out
    assert "model.normalization: imagenet -> lite" in said.err


def check_export_equals_evaluation(export_dir: str, model_dir: str, part: str) -> None:
    """The SavedModel, fed the encoded images, predicts what the evaluation's path predicts."""
    run = load_run(model_dir, load_experiment)
    size = run.config.data.canvas_size
    task = build_detector.restore_task(run, select_checkpoint(model_dir, "latest"))
    shards = find_split(
        run.config.data.directory, "val", [entry.name for entry in run.classes]
    ).shards
    batch = next(
        iter(eval_dataset(shards=shards, canvas_size=size, batch_size=4, max_instances=50))
    )
    detections = tf.function(task.predict, autograph=False)(batch)
    boxes = boxes_to_original(
        detections.boxes.numpy(),
        scales=batch.scales.numpy(),
        offsets=batch.offsets.numpy(),
        sizes=batch.original_sizes.numpy(),
    )
    encoded = [parse_example(record).encoded for _, record in read_records(shards)]
    found = tf.saved_model.load(export_dir).signatures["serving_default"](tf.stack(encoded))
    sizes = np.tile(batch.original_sizes.numpy(), (1, 2))[:, None, :]
    assert found["num_detections"].numpy().min() > 10
    np.testing.assert_array_equal(found["num_detections"], detections.num_detections)
    np.testing.assert_array_equal(found["detection_classes"], detections.classes)
    np.testing.assert_allclose(found["detection_scores"], detections.scores, atol=1e-4)
    valid = detections.scores.numpy()[..., None] > 0  # padding is 0 there, -offset here
    np.testing.assert_allclose(found["detection_boxes"] * valid, boxes / sizes * valid, atol=1e-4)


def test_wrong_input_is_one_message_and_exit_code_2(
    sample_part: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model_dir = str(tmp_path / "run")
    command = ["--config", "quickstart", "--model_dir", model_dir, "--dry_run"]

    def message(**values: str) -> str:
        changed = {key.replace("__", "."): value for key, value in values.items()}
        assert train.main([*command, *flags(TINY | changed)]) == 2
        return capsys.readouterr().err

    assert "data.directory is empty" in message()
    assert "nowhere" in message(data__directory=str(tmp_path / "nowhere"))
    directory = {"data__directory": sample_part}
    for key in ("data__train_split", "data__eval_split"):
        assert "validation_tiny" in message(**directory, **{key: "validation"})
    assert "matches no variable" in message(**directory, train__freeze="[bakbone/]")
    assert not Path(model_dir).exists()


@pytest.mark.parametrize(
    "damage",
    [
        *("truncated", "empty classes", "no classes", "fewer classes"),
        *("empty manifest", "truncated manifest", "foreign manifest"),
        *("other order", "being written", "half overwritten", "order of val"),
    ],
)
def test_damaged_data_is_one_message_and_exit_code_2(
    damage: str, sample_part: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    part = tmp_path / "tiny"
    shutil.copytree(sample_part, part)
    classes, shard = part / "classes.csv", part / "train_tiny-00001-of-00002.tfrecord"
    manifest = part / "train_tiny.manifest.json"
    match damage:
        case "truncated":
            shard.write_bytes(shard.read_bytes()[:-5])
        case "empty classes":
            classes.write_text("")
        case "no classes":
            classes.unlink()
        case "fewer classes":
            classes.write_text("/sample/disc,disc\n")
        case "empty manifest":
            manifest.write_text("")
        case "truncated manifest":
            manifest.write_text(manifest.read_text()[:-5])
        case "foreign manifest":
            manifest.write_text('{"splits": []}')
        case "other order":
            rows = classes.read_text().splitlines(keepends=True)
            classes.write_text("".join(reversed(rows)))
        case "being written":
            (part / "train_tiny.progress").mkdir()
        case "half overwritten":  # the second shard is one of another conversion
            shard.write_bytes((part / "train_tiny-00000-of-00002.tfrecord").read_bytes())
        case "order of val":  # written at the same time with another list
            text = (part / "val_tiny.manifest.json").read_text()
            names = json.loads(text)["boxes_per_class"]
            swapped = json.loads(text) | {"boxes_per_class": dict(reversed(names.items()))}
            (part / "val_tiny.manifest.json").write_text(json.dumps(swapped))
    command = ["--config", "quickstart", "--model_dir", str(tmp_path / "run")]
    assert train.main([*command, *flags(TINY | {"data.directory": str(part)})]) == 2
    message = capsys.readouterr().err
    expected = {
        "truncated": "train_tiny-00001-of-00002.tfrecord ends in the middle of a record",
        "empty classes": "it is empty",
        "no classes": "classes.csv does not exist",
        "fewer classes": "classes.csv has 1",
        "other order": "class 1 was disc, in classes.csv it is stick",
        "foreign manifest": "train_tiny.manifest.json is not a manifest of a prepared set",
        "being written": "train_tiny.progress exists: this split is still being written",
        "half overwritten": "train_tiny-00001-of-00002.tfrecord has ",
        "order of val": "split `val` of",
    }.get(damage, "train_tiny.manifest.json is not JSON, or was cut short")
    assert message.startswith("tpudet train: ")
    assert expected in message
    assert not (tmp_path / "run").exists()


def test_another_class_list_in_the_model_dir_is_refused_by_name(
    sample_part: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model_dir = tmp_path / "run"
    model_dir.mkdir()
    classes = Path(sample_part, "classes.csv").read_text()
    (model_dir / "classes.csv").write_text(classes.replace("triangle", "circle"))
    command = ["--config", "quickstart", "--model_dir", str(model_dir)]
    assert train.main([*command, *flags(TINY | {"data.directory": sample_part})]) == 2
    message = capsys.readouterr().err
    assert "class 2 was /sample/circle,circle, now /sample/triangle,triangle" in message


def test_a_second_training_in_one_folder_is_refused_with_its_owner(
    sample_part: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    hold_claim: Callable[[Path], AbstractContextManager[int]],
) -> None:
    command = ["--config", "quickstart", "--model_dir", str(tmp_path)]
    small = TINY | {"model.min_level": "3", "model.max_level": "3", "data.directory": sample_part}
    with hold_claim(tmp_path / "train.claim.json") as process:
        assert train.main([*command, *flags(small)]) == 2
    message = capsys.readouterr().err
    assert f"the training in {tmp_path} is being written by process {process} on " in message
    assert list(tmp_path.iterdir()) == []
