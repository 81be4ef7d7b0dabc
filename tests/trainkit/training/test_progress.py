"""What a log line says."""

from tpudet.trainkit.training.engine import StepReport
from tpudet.trainkit.training.run_log import Progress, format_duration, format_line


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


def test_durations() -> None:
    assert format_duration(59.6) == "0:01:00"
    assert format_duration(3723) == "1:02:03"
    assert format_duration(100 * 3600) == "100:00:00"
