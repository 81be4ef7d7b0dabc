"""The log of a run: lines for the screen, the ledger, and events that TensorBoard itself reads."""

import json
import logging
import time
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator

from tpudet.trainkit.training import run_log
from tpudet.trainkit.training.engine import GRADIENT_NORM, L2, StepReport
from tpudet.trainkit.training.run_log import (
    Ledger,
    Progress,
    TensorBoardWriter,
    finite_number,
    format_duration,
    format_line,
    open_tensorboard,
    read_ledger,
)


def test_means_are_weighted_by_steps_and_waiting_by_time() -> None:
    progress = Progress(batch_size=8)
    progress.add(StepReport({"loss": 1.0, "gradient_norm": 4.0}, 1, 0.5, 0.2, 1.0, None))
    progress.add(StepReport({"loss": 2.0, "gradient_norm": 8.0}, 3, 0.1, 0.1, 3.0, None))
    summary = progress.summary(remaining_steps=60, remaining_eval_seconds=30.0)
    assert summary == {
        "loss": 1.75,  # (1 * 1 + 3 * 2) / 4
        "gradient_norm": 7.0,
        "learning_rate": 0.1,
        "images_per_second": 8.0,  # 4 steps of 8 in 4 s
        "input_wait_share": 0.2,  # (0.5 * 1 + 0.1 * 3) / 4
        "eta_seconds": 90.0,  # 60 steps of 1 s, and the evaluations
        "steps": 4,
    }
    assert format_line(40, 100, summary) == (
        "step 40/100  loss 1.75  learning rate 0.1  8.0 images/s  waiting for input 20%  "
        "ETA 0:01:30"
    )
    progress.reset()
    progress.add(StepReport({"loss": 5.0}, 2, 0.0, 0.3, 1.0, None))
    assert progress.summary(remaining_steps=0, remaining_eval_seconds=0.0)["loss"] == 5.0


def test_the_parts_on_the_screen_add_up_to_the_loss() -> None:
    """0.5 + 0.25 + 0.125 = 0.875; a norm is no part of it."""
    parts = {"loss_box": 0.5, "loss_class": 0.25, "loss": 0.875, L2: 0.125, GRADIENT_NORM: 9.0}
    progress = Progress(batch_size=8)
    progress.add(StepReport(parts, 1, 0.0, 0.1, 1.0, None))
    summary = progress.summary(remaining_steps=0, remaining_eval_seconds=0.0)
    assert format_line(1, 1, summary).startswith(
        "step 1/1  loss_box 0.5  loss_class 0.25  loss 0.875  l2 0.125  learning rate 0.1  "
    )


def test_durations() -> None:
    assert format_duration(59.6) == "0:01:00"
    assert format_duration(3723) == "1:02:03"
    assert format_duration(100 * 3600) == "100:00:00"


def kinds_and_steps(ledger: Ledger) -> list[tuple[str, int]]:
    return [(line["kind"], line["step"]) for line in ledger.lines()]


def test_lines_come_back_in_order(ram_dir: str) -> None:
    ledger = Ledger(ram_dir)
    assert ledger.lines() == []
    assert ledger.last_state() is None
    ledger.append("state", 0, {"state": "running", "total_steps": 20, "reason": ""})
    ledger.append("train", 10, {"loss": 0.25})
    ledger.append("eval", 10, {"AP50": 0.5})
    assert kinds_and_steps(ledger) == [("state", 0), ("train", 10), ("eval", 10)]
    assert ledger.lines()[1]["loss"] == 0.25
    assert ledger.last_state() == "running"


def test_what_json_cannot_hold_is_a_string(tmp_path: Path) -> None:
    ledger = Ledger(str(tmp_path))
    values = {"nan": float("nan"), "up": float("inf"), "down": -float("inf"), "none": None}
    ledger.append("train", 1, values)

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    text = (tmp_path / "metrics.jsonl").read_text()
    line = json.loads(text, parse_constant=refuse)
    assert [line[name] for name in values] == ["nan", "inf", "-inf", None]
    assert finite_number(line["nan"]) is None
    assert finite_number(True) is None
    assert finite_number(3) == 3.0


@pytest.mark.parametrize("cut", [1, 5, 30])
def test_a_torn_last_line_is_skipped_and_repaired(tmp_path: Path, cut: int) -> None:
    ledger = Ledger(str(tmp_path))
    ledger.append("train", 1, {"loss": 1.0})
    ledger.append("train", 2, {"loss": 2.0})
    path = tmp_path / "metrics.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    # A line that lacks nothing but its line feed is whole.
    expected = [("train", 1), ("train", 2)] if cut == 1 else [("train", 1)]
    restarted = Ledger(str(tmp_path))
    assert kinds_and_steps(restarted) == expected
    restarted.rewind(2)
    restarted.append("train", 3, {"loss": 3.0})
    assert kinds_and_steps(restarted) == [*expected, ("train", 3)]
    assert [json.loads(text)["step"] for text in path.read_text().splitlines()] == [
        step for _, step in [*expected, ("train", 3)]
    ]


def test_an_evaluator_does_not_glue_its_line_to_a_torn_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"kind": "train", "step": 1}\n{"kind": "tr')
    ledger = Ledger(str(tmp_path))
    ledger.append("eval", 1, {"AP50": 0.5})
    with caplog.at_level(logging.WARNING):
        assert kinds_and_steps(ledger) == [("train", 1), ("eval", 1)]
    assert f"{path}: not lines of a ledger: 2 (" in caplog.text


def test_rewinding_drops_what_will_be_trained_again(ram_dir: str) -> None:
    ledger = Ledger(ram_dir)
    for step in (10, 20, 30):
        ledger.append("train", step, {})
        ledger.append("eval", step, {})
    ledger.append("state", 30, {"state": "stopped"})
    ledger.rewind(20)
    assert kinds_and_steps(ledger) == [
        ("train", 10),
        ("eval", 10),
        ("train", 20),
        ("eval", 20),
        ("state", 30),
    ]
    ledger.rewind(None)
    assert kinds_and_steps(ledger) == [("state", 30)]


def test_rewinding_compares_no_line_with_another(
    ram_dir: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each with each takes minutes of a restart for a ledger of 20,000 lines."""

    class Line(dict):
        def __eq__(self, other: object) -> bool:
            raise AssertionError("compared")

        __hash__ = None  # pyright: ignore[reportAssignmentType]

    ledger = Ledger(ram_dir)
    for step in (10, 20, 30):
        ledger.append("train", step, {})
    monkeypatch.setattr(run_log, "read_ledger", lambda path: map(Line, read_ledger(path)))
    assert [line["step"] for line in ledger.rewind(10)] == [20, 30]


def test_a_store_that_cannot_append_gets_the_whole_file(
    ram_dir: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class WithoutAppend(tf.io.gfile.GFile):
        def write(self, file_content: str) -> None:
            if self.mode == "a":
                raise tf.errors.UnimplementedError(None, None, "append")
            super().write(file_content)

    monkeypatch.setattr(tf.io.gfile, "GFile", WithoutAppend)
    ledger = Ledger(ram_dir)
    for step in (1, 2):
        ledger.append("train", step, {})
    assert [line["step"] for line in read_ledger(ledger.path)] == [1, 2]
    assert tf.io.gfile.listdir(ram_dir) == ["metrics.jsonl"]


def test_a_restart_makes_tensorboard_forget_what_lies_beyond(tmp_path: Path) -> None:
    def write(restored_step: int | None, losses: dict[int, float]) -> None:
        writer = open_tensorboard(str(tmp_path), restored_step=restored_step)
        for step, loss in losses.items():
            writer.write("train", step, {"loss": loss})
        writer.close()

    write(None, {1: 1.0, 2: 2.0, 3: 3.0})
    time.sleep(1.1)  # the names of event files tell seconds apart
    write(2, {3: 30.0, 4: 40.0})
    found = EventAccumulator(str(tmp_path), size_guidance={"tensors": 0}).Reload()
    events = [
        (event.step, float(tf.make_ndarray(event.tensor_proto)))
        for event in found.Tensors("train/loss")
    ]
    assert events == [(1, 1.0), (2, 2.0), (3, 30.0), (4, 40.0)]


def test_images_are_shown_beside_the_metrics(tmp_path: Path) -> None:
    writer = open_tensorboard(str(tmp_path), restored_step=None)
    image = np.arange(18, dtype=np.uint8).reshape(2, 3, 3)
    writer.write("eval", 4, {"AP50": 0.5, "detections": image})
    writer.close()
    found = EventAccumulator(str(tmp_path), size_guidance={"tensors": 0}).Reload()
    (scalar,), (shown,) = found.Tensors("eval/AP50"), found.Tensors("eval/detections")
    assert (scalar.step, float(tf.make_ndarray(scalar.tensor_proto))) == (4, 0.5)
    width, height, encoded = tf.make_ndarray(shown.tensor_proto)
    assert (shown.step, width, height) == (4, b"3", b"2")
    np.testing.assert_array_equal(tf.io.decode_png(encoded), image)


@pytest.mark.parametrize(
    "values",
    [
        {"AP50": 0.5, "detections": np.random.default_rng(0).integers(0, 256, (256, 256, 3), "u1")},
        {f"loss_{k}": 0.5 for k in range(100)},
    ],
    ids=["images", "numbers"],
)
def test_what_a_bucket_is_sent_grows_with_the_writes_not_with_their_square(
    ram_dir: str, values: dict[str, float | np.ndarray]
) -> None:
    """A flush sends a file that has changed from its first byte."""

    def sizes() -> dict[str, int]:
        folder = tf.io.gfile.listdir(ram_dir)
        return {name: tf.io.gfile.stat(f"{ram_dir}/{name}").length for name in folder}

    writer, before, sent = TensorBoardWriter(ram_dir), sizes(), [0]
    for step in range(1, 61):
        writer.write("eval", step, values)
        after = sizes()
        sent.append(sent[-1] + sum(size for k, size in after.items() if before.get(k) != size))
        before = after
    writer.close()
    assert sent[60] < 2.5 * sent[30]  # 4 times as much, if files only grew
    events = [
        event
        for name in sizes()
        for record in tf.data.TFRecordDataset(f"{ram_dir}/{name}").as_numpy_iterator()
        if (event := tf.compat.v1.Event.FromString(record)).step
    ]
    assert len(events) == 60 * len(values)
    assert {event.step for event in events} == {*range(1, 61)}


def test_unreadable_lines_are_one_warning_however_many(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text("{}\n" * 5000 + '{"kind": "train", "step": 3}\n')
    assert read_ledger(str(path)) == [{"kind": "train", "step": 3}]
    (record,) = caplog.records
    expected = f"{path}: not lines of a ledger: 1 ({{}}), 2 ({{}}), 3 ({{}}) and 4997 more"
    assert record.getMessage() == expected


@pytest.mark.parametrize(
    "values", [f'"step": {10**400}', '"step": -1e300', r'"step": 4, "state": "\ud800"']
)
def test_lines_that_no_report_can_show_are_skipped(
    tmp_path: Path, values: str, caplog: pytest.LogCaptureFixture
) -> None:
    whole = '{"kind": "state", "step": 3}\n'
    (tmp_path / "metrics.jsonl").write_text(f'{whole}{{"kind": "state", {values}}}\n{whole}')
    lines = read_ledger(f"{tmp_path}/metrics.jsonl")
    assert [line["step"] for line in lines] == [3, 3]
    assert "not lines of a ledger: 2 (" in caplog.text
