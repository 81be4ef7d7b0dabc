"""The ledger: valid JSON, torn lines, rewinding."""

import json
import logging
from pathlib import Path

import pytest
import tensorflow as tf

from tpudet.trainkit.training.run_log import Ledger, finite_number, read_ledger


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
    assert Ledger(ram_dir).evaluated_steps() == {10}
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
    assert f"{path}:2" in caplog.text


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
        ("eval", 30),
        ("state", 30),
    ]
    ledger.rewind(None)
    assert kinds_and_steps(ledger) == [("state", 30)]


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
