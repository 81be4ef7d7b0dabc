"""A plan from the compiling process to what is printed, with a process that only does sums."""

from pathlib import Path

import pytest

from tpudet.trainkit.training import tpu_plan
from tpudet.trainkit.training.tpu_machines import find_machine
from tpudet.trainkit.training.tpu_plan import CompiledStep
from tpudet.trainkit.training.tpu_planner import Planner

# A step takes 1 GiB and 10 MiB for each image.
PROCESS = f"""
import json, sys
request = json.loads(sys.stdin.readline())
batch_size = request["batch_size"]
assert request["num_classes"] == 90
for name in request["steps"]:
    print(json.dumps({{"event": "doing", "what": "compiling the " + name + " step"}}))
    step = dict.fromkeys({CompiledStep._fields}, 0) | {{"step": name, "batch_size": batch_size}}
    step |= {{"argument_bytes": 1 << 30, "temporary_bytes": batch_size * 10 << 20}}
    step |= {{"flops": 1e12, "cycles": {{}}}}
    print(json.dumps({{"event": "compiled", "step": step}}))
"""


@pytest.fixture
def planner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Planner:
    (tmp_path / "compiles_by_sums.py").write_text(PROCESS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return Planner(
        process="compiles_by_sums",
        request={"num_classes": 90},
        machine=find_machine("v5e-1"),
        num_devices=1,
        accumulate_steps=1,
    )


def test_steps_that_fit_are_compiled_and_nothing_is_searched(
    planner: Planner, capsys: pytest.CaptureFixture[str]
) -> None:
    steps, code = planner.plan(["train", "evaluate"], 64, searches=False)
    assert code == 0
    assert [(step.step, step.batch_size) for step in steps] == [("train", 64), ("evaluate", 64)]
    printed = capsys.readouterr()
    assert "train step, batch 64:" in printed.out
    assert "evaluate step, batch 64:" in printed.out
    assert "memory per device 1.62 of 15.75 GiB" in printed.out
    assert "... compiling the evaluate step" in printed.err
    assert "trying" not in printed.err


@pytest.mark.parametrize("batch_size", [64, 4096])
def test_the_largest_batch_is_searched_on_request_and_where_the_steps_do_not_fit(
    planner: Planner, batch_size: int, capsys: pytest.CaptureFixture[str]
) -> None:
    steps, code = planner.plan(["train"], batch_size, searches=batch_size == 64)
    assert code == (0 if batch_size == 64 else tpu_plan.EXIT_DOES_NOT_FIT)
    room = (find_machine("v5e-1").memory_bytes - (1 << 30)) // (10 << 20)
    assert [step.batch_size for step in steps] == [batch_size, room // 8 * 8]
    printed = capsys.readouterr()
    assert f"trying batch {batch_size // 2}" in printed.err
    assert f"the largest training batch that was compiled and fits is {room // 8 * 8}:" in (
        printed.out
    )
