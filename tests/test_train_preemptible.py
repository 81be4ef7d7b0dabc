"""scripts/train_preemptible.sh against a gcloud that plays a machine which is taken away."""

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts/train_preemptible.sh"
FLAGS = ["--config", "a b", "--model_dir", "gs://bucket/saved/m"]
# $WORLD holds the state of the machine, the calls, and what each run does, a line per run.
GCLOUD = r"""#!/usr/bin/env bash
verb=$4
echo "$verb ${*:6}" >>"$WORLD/calls"
case $verb in
describe) cat "$WORLD/state" 2>/dev/null || exit 1 ;;
create)
    read -r answer <"$WORLD/creations"
    sed -i 1d "$WORLD/creations"
    [[ $answer == ok ]] && echo READY >"$WORLD/state" ;;
delete) rm "$WORLD/state" ;;
ssh)
    [[ $* == *tpudet\ train* ]] || exit 0
    read -r run <"$WORLD/runs"
    sed -i 1d "$WORLD/runs"
    echo "step 100"
    case $run in
    preempted) echo PREEMPTED >"$WORLD/state"; exit 255 ;;
    cut) exit 255 ;;
    *) echo "tpudet_exit $run" ;;
    esac ;;
esac
"""


def run(
    world: Path, *arguments: str, runs: tuple[str, ...], creations: tuple[str, ...] = ("ok",) * 9
) -> tuple[int, list[str], str]:
    gcloud = world / "gcloud"
    gcloud.write_text(GCLOUD)
    gcloud.chmod(0o755)
    (world / "runs").write_text("".join(f"{run}\n" for run in runs))
    (world / "creations").write_text("".join(f"{answer}\n" for answer in creations))
    variables = {
        **os.environ,
        "PATH": f"{world}:{os.environ['PATH']}",
        "WORLD": str(world),
        "RETRY_SECONDS": "0",
    }
    done = subprocess.run(
        [SCRIPT, *arguments], capture_output=True, text=True, check=False, timeout=60, env=variables
    )
    calls = (world / "calls").read_text().splitlines() if (world / "calls").exists() else []
    return done.returncode, calls, done.stdout + done.stderr


def verbs(calls: list[str]) -> list[str]:
    return [call.split()[0] for call in calls if not call.startswith("describe")]


def test_after_a_preemption_the_machine_is_made_again_and_the_run_goes_on(tmp_path: Path) -> None:
    code, calls, output = run(
        tmp_path, "det-1", "us-west4-a", "v5litepod-8", *FLAGS, runs=("preempted", "0")
    )
    assert code == 0, output
    once = ["create", "ssh", "ssh"]  # ssh: to install, to train
    assert verbs(calls) == [*once, "delete", *once, "delete"]
    assert "det-1 is PREEMPTED: deleting it" in output
    assert output.count("step 100") == 2
    create = next(call for call in calls if call.startswith("create"))
    assert create == "create --zone us-west4-a --accelerator-type v5litepod-8 " + (
        "--version v2-alpha-tpuv5-lite --spot"
    )
    training = r"tpudet train --backend jax --config a\ b --model_dir gs://bucket/saved/m"
    assert sum(training in call for call in calls) == 2


def test_a_lost_connection_only_connects_again(tmp_path: Path) -> None:
    code, calls, output = run(tmp_path, "d", "z", "v5litepod-8", *FLAGS, runs=("cut", "75", "0"))
    assert code == 0, output
    assert verbs(calls) == ["create", "ssh", "ssh", "ssh", "ssh", "delete"]


def test_where_there_is_no_machine_it_asks_again(tmp_path: Path) -> None:
    code, calls, output = run(
        tmp_path, "d", "z", "v5litepod-8", *FLAGS, runs=("0",), creations=("no", "no", "ok")
    )
    assert code == 0
    assert verbs(calls) == ["create", "create", "create", "ssh", "ssh", "delete"]
    assert "no machine; trying again" in output


@pytest.mark.parametrize("code", [1, 2])
def test_a_run_that_fails_is_not_repeated_and_stops_costing(tmp_path: Path, code: int) -> None:
    found, calls, _ = run(tmp_path, "d", "z", "v5litepod-8", *FLAGS, runs=(str(code),))
    assert found == code
    assert verbs(calls)[-1] == "delete"


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("d", "z", "v5litepod-8"),
        ("--help",),
        ("d", "z", "v5litepod-8", "--config", "v", "--model_dir", "output/saved/m"),
    ],
)
def test_without_a_bucket_it_starts_nothing(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    code, calls, output = run(tmp_path, *arguments, runs=())
    assert (code, calls) == (2, [])
    assert output.startswith("usage: train_preemptible.sh NAME ZONE TYPE")
