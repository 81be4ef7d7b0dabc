"""The precision of a prediction on CPUs: what decides it, and that parts of two are not mixed."""

import pytest

from tpudet.detection.inference import predict
from tpudet.detection.inference.parts import PredictionTask
from tpudet.trainkit.saved_model import SavedModel

TASK = PredictionTask(SavedModel("model", "", {}, "fingerprint"), [], "predictions.parquet")


@pytest.mark.parametrize(
    ("precision", "gains", "on_cluster", "in_bfloat16"),
    [
        ("auto", True, False, True),
        ("auto", False, False, False),
        ("auto", True, True, False),  # nodes may have other CPUs
        ("float32", True, False, False),
        ("bfloat16", False, True, True),
    ],
)
def test_auto_is_bfloat16_where_this_cpu_is_faster_with_it(
    monkeypatch: pytest.MonkeyPatch,
    precision: predict.Precision,
    gains: bool,
    on_cluster: bool,
    in_bfloat16: bool,
) -> None:
    monkeypatch.setattr(predict, "gains_from_bfloat16", lambda: gains)
    (task,) = predict.with_precision([TASK], precision, on_cluster=on_cluster)
    assert task.in_bfloat16 is in_bfloat16


def test_parts_of_another_precision_are_not_continued() -> None:
    assert TASK.key() != TASK._replace(in_bfloat16=True).key()
