"""The training input of an experiment: part of the data, no mosaic at the end, turned images."""

import shutil
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tpudet.detection import build_detector, experiment
from tpudet.detection.build_detector import build_train_dataset
from tpudet.detection.config import ExperimentConfig
from tpudet.detection.types import Batch
from tpudet.trainkit.config.decode import ConfigError, load_config
from tpudet.trainkit.errors import UserError
from tpudet.trainkit.record_splits import Split, find_split, first_records
from tpudet.trainkit.records import RECORDS_PER_SHARD_LIMIT
from tpudet.trainkit.shuffled_records import ShuffledRecords, read_shuffled
from tpudet.trainkit.training.model_dir import load_classes

SMALL = ["data.canvas_size=[64, 96]", "train.total_steps=4", "train.batch_size=4"]
MOSAIC = "data.augmentations=[{kind: mosaic, probability: 1.0}]"


def split_of(part: str) -> Split:
    names = (Path(part) / "classes.csv").read_text().split()
    return find_split(part, "train", [name.split(",")[1] for name in names])


def batches(
    part: str, *change: str, start: int = 0, first_step: int = 0, count: int = 4
) -> list[Batch]:
    config = load_config(
        ExperimentConfig, "quickstart", overrides=[f"data.directory={part}", *SMALL, *change]
    )
    dataset: Any = build_train_dataset(config, split_of(part), start, first_step=first_step)
    return list(dataset.take(count).as_numpy_iterator())


@pytest.fixture(scope="module")
def plain(sample_part: str) -> list[Batch]:
    return batches(sample_part)


def test_the_last_steps_are_without_mosaic_also_after_a_restart(
    sample_part: str, plain: list[Batch]
) -> None:
    change = (MOSAIC, "data.close_mosaic_steps=2")
    closed = batches(sample_part, *change)
    for step, (batch, unmixed) in enumerate(zip(closed, plain, strict=True)):
        np.testing.assert_array_equal(batch.records, unmixed.records)
        assert np.array_equal(batch.images, unmixed.images) == (step >= 2)
    resumed = batches(sample_part, *change, start=4, first_step=1, count=3)
    for batch, expected in zip(resumed, closed[1:], strict=True):
        np.testing.assert_array_equal(batch.images, expected.images)
        np.testing.assert_array_equal(batch.boxes, expected.boxes)


def test_the_last_steps_are_counted_in_steps_after_a_change_of_batch_size(
    sample_part: str, plain: list[Batch]
) -> None:
    """Two steps of 2 images are behind; those of 4 that follow are the last two of four."""
    change = (MOSAIC, "data.close_mosaic_steps=2")
    closed = batches(sample_part, *change, start=4, first_step=2, count=2)
    for batch, unmixed in zip(closed, plain[1:3], strict=True):
        np.testing.assert_array_equal(batch.images, unmixed.images)


def test_the_input_of_a_run_begins_at_the_step_of_its_engine(
    sample_part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, Any] = {}
    monkeypatch.setattr(build_detector, "build_train_dataset", lambda *_, **named: seen | named)
    built = SimpleNamespace(engine=SimpleNamespace(step=7))

    def build_training(*_: Any, make_dataset: Any, **__: Any) -> Any:
        seen["make_dataset"] = make_dataset
        return built

    monkeypatch.setattr(build_detector, "build_training", build_training)
    settings: dict[str, Any] = {
        "classes": [],
        "train_split": split_of(sample_part),
        "devices": None,
    }
    config = load_config(ExperimentConfig, "quickstart", overrides=SMALL)
    build_detector.build_detector_training(config, **settings)
    assert seen["make_dataset"](20)["first_step"] == 7
    closed = [*SMALL, "data.close_mosaic_steps=4"]
    config = load_config(ExperimentConfig, "quickstart", overrides=closed)
    build_detector.build_detector_training(config, **settings)  # nothing is mixed anyway
    mixed = [*closed, "data.augmentations=[{kind: mosaic, probability: 1.0}]"]
    config = load_config(ExperimentConfig, "quickstart", overrides=mixed)
    with pytest.raises(ConfigError, match="close_mosaic_steps is 4, .* below the 4 steps"):
        build_detector.build_detector_training(config, **settings)


def test_a_range_test_keeps_mosaic_to_its_end(
    sample_part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(experiment, "run_range_test", lambda config, *_, **__: config)
    overrides = [f"data.directory={sample_part}", "data.close_mosaic_steps=500"]
    config = load_config(ExperimentConfig, "quickstart", overrides=overrides)
    found: Any = experiment.range_test(config, start=1e-5, end=1.0, num_steps=100)
    assert found.data.close_mosaic_steps == 0


@pytest.mark.parametrize(("fraction", "whole"), [(1.0, ""), (0.5, "the whole of ")])
def test_counts_of_a_manifest_are_said_to_be_of_the_whole_split(
    sample_part: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    fraction: float,
    whole: str,
) -> None:
    monkeypatch.setattr(experiment, "log_plan", lambda *_, **__: None)
    monkeypatch.setattr(experiment, "log_frozen", lambda *_, **__: None)
    overrides = [f"data.fraction={fraction}", "data.max_instances=1"]
    config = load_config(ExperimentConfig, "quickstart", overrides=overrides)
    start: Any = SimpleNamespace(
        config=config, devices=SimpleNamespace(num_replicas=1), begins=True
    )
    training: Any = SimpleNamespace(task=SimpleNamespace(model=None), loaded=None, frozen=None)
    with caplog.at_level("INFO"):
        experiment._log_start(start, training, split=split_of(sample_part), classes=[])
    assert f"{whole}split train: data.max_instances 1: " in caplog.text


def test_training_alone_names_its_damaged_file_without_a_split_to_evaluate(
    sample_part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(sample_part, tmp_path, dirs_exist_ok=True)
    first = sorted(tmp_path.glob("train_*.tfrecord"))[0]
    content = bytearray(first.read_bytes())
    content[500] ^= 255
    first.write_bytes(content)

    def run_training(*_: Any, **__: Any) -> int:
        list(tf.data.TFRecordDataset(str(first)))
        return 0

    def resolve_start(config: ExperimentConfig, **_: Any) -> Any:
        devices = SimpleNamespace(num_processes=1)
        return SimpleNamespace(config=config, devices=devices, pretrained=None)

    monkeypatch.setattr(experiment, "resolve_start", resolve_start)
    for name in ("build_detector_training", "_log_start", "are_cpus"):
        monkeypatch.setattr(experiment, name, lambda *_, **__: None)
    monkeypatch.setattr(experiment, "run_training", run_training)
    config = load_config(
        ExperimentConfig,
        "quickstart",
        overrides=[f"data.directory={tmp_path}", "data.eval_split=none"],
    )
    with pytest.raises(UserError, match=f"are damaged: .*{first.name}"):
        experiment.train(config, model_dir=str(tmp_path / "run"), mode="train")


def test_records_of_others_are_evaluated_by_the_class_list_beside_them(
    sample_part: str, tmp_path: Path
) -> None:
    """The numbers in them mean its rows, whatever those of the model mean."""
    text, classes = load_classes(sample_part)
    (tmp_path / "classes.csv").write_text(text)
    shard = next(Path(sample_part).glob("val_*.tfrecord"))
    shutil.copy(shard, tmp_path / "val-00000-of-00001.tfrecord")
    config = load_config(ExperimentConfig, "quickstart", overrides=[f"data.directory={tmp_path}"])
    assert len(experiment._eval_shards(config, classes)) == 1
    with pytest.raises(UserError, match="is not that of the model: class 1 was "):
        experiment._eval_shards(config, classes[::-1])


def test_a_fraction_reads_the_first_records_of_each_file_over_and_over(sample_part: str) -> None:
    whole = split_of(sample_part)
    assert first_records(whole, 0.01).records_per_shard == [1, 1]
    part = first_records(whole, 0.5)
    assert part.records_per_shard == [4, 4]  # of 8 and 8
    records = read_shuffled(
        ShuffledRecords(part.shards, part.records_per_shard, seed=0, whole_files=False)
    )
    seen = [int(record) for _, record, _ in records.take(16)]
    expected = [shard * RECORDS_PER_SHARD_LIMIT + k for shard in range(2) for k in range(4)]
    assert sorted(seen[:8]) == sorted(seen[8:]) == expected


def test_turned_images_stay_on_a_canvas_that_is_not_square(
    sample_part: str, plain: list[Batch]
) -> None:
    turned = batches(sample_part, "data.quarter_turns=true", "data.vertical_flip=true")
    for before, after in zip(plain, turned, strict=True):
        assert after.images.shape == (4, 64, 96, 3)
        np.testing.assert_array_equal(after.records, before.records)
        assert (after.boxes[..., 2] <= 64).all()
        assert (after.boxes[..., 3] <= 96).all()
        assert not np.array_equal(after.images, before.images)


def test_autograph_converts_no_function_of_the_input(
    sample_part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # where it writes what it converted
    converted: Any = tf.data.Dataset.range(2).map(lambda number: number if number > 0 else -number)
    assert list(converted.as_numpy_iterator()) == [0, 1]
    (before,) = tmp_path.glob("__autograph_generated_file*.py")
    batches(sample_part, MOSAIC, count=1)
    assert list(tmp_path.glob("__autograph_generated_file*.py")) == [before]
