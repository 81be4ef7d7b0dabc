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
if [[ $1 == storage ]]; then
    cat "$WORLD/checkpoint" 2>/dev/null
    exit
fi
call="$verb ${*:6}"
echo "${call//$'\n'/ }" >>"$WORLD/calls"
case $verb in
describe) cat "$WORLD/state" 2>/dev/null || exit 1 ;;
create)
    read -r answer <"$WORLD/creations"
    sed -i 1d "$WORLD/creations"
    [[ $answer == ok ]] && echo READY >"$WORLD/state" ;;
delete) rm "$WORLD/state" ;;
ssh)
    [[ $* == *failing\ install* ]] && exit 7
    [[ $* == *unreachable\ install* ]] && (($(grep -c ^ssh "$WORLD/calls") < 6)) && exit 255
    [[ $* == *tpudet\ train* ]] || exit 0
    read -r run <"$WORLD/runs"
    sed -i 1d "$WORLD/runs"
    cd "$WORLD"
    case $run in
    real) exec bash -c "${10}" ;;
    real-cut) bash -c "${10}" | head -2; exit 255 ;;
    unreachable) exit 255 ;;
    *+) run=${run%+}; echo "$RANDOM" >"$WORLD/checkpoint" ;;
    esac
    echo "tpudet_follows"
    echo "step 100"
    case $run in
    preempted) echo PREEMPTED >"$WORLD/state"; exit 255 ;;
    silent) # cut off without a word: ssh finds out if it asks
        echo PREEMPTED >"$WORLD/state"
        [[ ${*:11} == "-- "*"-o ServerAliveInterval="* ]] || exec /bin/sleep 100
        exit 255 ;;
    cut) exit 255 ;;
    *) echo "tpudet_exit ${run%-going}" ;;
    esac
    case $run in
    *-going) echo PREEMPTED >"$WORLD/state" ;;
    esac ;;
esac
"""

# The machine's: a training that is stopped after a second, and when it is resumed finishes.
PYTHON = r"""#!/usr/bin/env bash
echo "$*" >>"$WORLD/trainings"
for step in 1 2 3 4 5; do
    echo "real step $step"
    /bin/sleep 0.2
done
(($(wc -l <"$WORLD/trainings") == 2)) || exit 75
"""
SLEEP = '#!/bin/sh\necho "sleep $1" >>"$WORLD/calls"\n'


def make_world(
    world: Path, runs: tuple[str, ...], creations: tuple[str, ...] = ("ok",) * 9
) -> dict[str, str]:
    """The environment in which gcloud plays, and in which to sleep is only a call."""
    for name, text in (("gcloud", GCLOUD), ("sleep", SLEEP), ("python3", PYTHON)):
        (world / name).write_text(text)
        (world / name).chmod(0o755)
    (world / "runs").write_text("".join(f"{run}\n" for run in runs))
    (world / "creations").write_text("".join(f"{answer}\n" for answer in creations))
    variables = {"INSTALL": "pip install the.whl", "WORLD": str(world)}
    return {**os.environ, "PATH": f"{world}:{os.environ['PATH']}", **variables}


def run(
    world: Path,
    *arguments: str,
    runs: tuple[str, ...],
    creations: tuple[str, ...] = ("ok",) * 9,
    **changes: str,
) -> tuple[int, list[str], str]:
    variables = {**make_world(world, runs, creations), **changes}
    done = subprocess.run(
        [SCRIPT, *arguments], capture_output=True, text=True, check=False, timeout=60, env=variables
    )
    calls = (world / "calls").read_text().splitlines() if (world / "calls").exists() else []
    return done.returncode, calls, done.stdout + done.stderr


def verbs(calls: list[str]) -> list[str]:
    return [call.split()[0] for call in calls if not call.startswith(("describe", "sleep"))]


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
    training = (
        r"python3 -m tpudet train --backend jax --config a\ b --model_dir gs://bucket/saved/m"
    )
    assert sum(training in call for call in calls) == 2


def test_a_machine_that_is_cut_off_without_a_word_is_noticed(tmp_path: Path) -> None:
    """After three minutes of no answer; TCP alone would take two hours."""
    code, calls, output = run(tmp_path, "d", "z", "v5litepod-8", *FLAGS, runs=("silent", "0"))
    assert code == 0, output
    once = ["create", "ssh", "ssh"]
    assert verbs(calls) == [*once, "delete", *once, "delete"]
    options = "-- -o ServerAliveInterval=30 -o ServerAliveCountMax=6 -o ConnectTimeout=30"
    assert all(call.endswith(options) for call in calls if call.startswith("ssh"))


def test_a_lost_connection_only_connects_again(tmp_path: Path) -> None:
    code, calls, output = run(tmp_path, "d", "z", "v5litepod-8", *FLAGS, runs=("cut", "75", "0"))
    assert code == 0, output
    assert verbs(calls) == ["create", "ssh", "ssh", "ssh", "ssh", "delete"]


def test_a_training_whose_connection_is_lost_goes_on_and_is_followed(tmp_path: Path) -> None:
    """The command for the machine runs here; its first connection ends after two lines."""
    code, calls, output = run(
        tmp_path, "d", "z", "v5litepod-8", *FLAGS, runs=("real-cut", "real", "real")
    )
    assert code == 0, output
    assert verbs(calls) == ["create", *["ssh"] * 4, "delete"]  # one ssh to install
    training = "-m tpudet train --backend jax --config a b --model_dir gs://bucket/saved/m\n"
    assert (tmp_path / "trainings").read_text() == training * 2
    ends = ["lost the connection", "stopped with its state saved", "finished"]
    places = [output.index(end) for end in ends]
    assert places == sorted(places)
    assert output.count("real step 5") == 2  # each training was seen to its end


@pytest.mark.parametrize("ended", ["75", "129", "130", "134", "137", "143", "unreachable"])
def test_it_gives_up_a_machine_that_trains_nothing(tmp_path: Path, ended: str) -> None:
    code, calls, output = run(
        tmp_path, "d", "z", "v5litepod-8", *FLAGS, runs=(ended,) * 9, ATTEMPTS="4"
    )
    assert code == (255 if ended == "unreachable" else int(ended))
    assert verbs(calls) == ["create", *["ssh"] * 5, "delete"]  # one ssh to install
    assert "gave up after 4 attempts on d without a new checkpoint" in output


def test_a_new_checkpoint_or_machine_begins_the_count_of_attempts_anew(tmp_path: Path) -> None:
    runs = ("75", "75", "143+", "137", "preempted", "75", "75", "0")
    code, calls, output = run(tmp_path, "d", "z", "v5litepod-8", *FLAGS, runs=runs, ATTEMPTS="3")
    assert code == 0, output
    assert verbs(calls).count("create") == 2


def test_a_claim_of_the_training_before_is_waited_for(tmp_path: Path) -> None:
    """Wrong usage would have shown at the first start."""
    runs = ("preempted", "2", "2", "0")
    code, calls, output = run(tmp_path, "d", "z", "v5litepod-8", *FLAGS, runs=runs)
    assert code == 0, output
    assert verbs(calls) == ["create", "ssh", "ssh", "delete", "create", *["ssh"] * 4, "delete"]
    assert output.count("ended with 2 where it has trained before") == 2


def test_a_failure_after_a_new_checkpoint_is_no_wrong_usage(tmp_path: Path) -> None:
    """Such as a bucket that does not answer, in the first attempt."""
    code, calls, output = run(tmp_path, "d", "z", "v5litepod-8", *FLAGS, runs=("2+", "2", "0"))
    assert code == 0, output
    assert verbs(calls) == ["create", *["ssh"] * 4, "delete"]


def test_a_checkpoint_from_before_excuses_no_wrong_usage(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").write_text("of an earlier run of the script")
    code, calls, _ = run(tmp_path, "d", "z", "v5litepod-8", *FLAGS, runs=("2", "0"))
    assert code == 2
    assert verbs(calls) == ["create", "ssh", "ssh", "delete"]


@pytest.mark.parametrize("ended", ["1", "2"])
def test_a_failure_of_a_machine_that_goes_is_a_preemption(tmp_path: Path, ended: str) -> None:
    runs = (f"{ended}-going", "0")
    code, calls, output = run(tmp_path, "d", "z", "v5litepod-8", *FLAGS, runs=runs)
    assert code == 0, output
    once = ["create", "ssh", "ssh"]
    assert verbs(calls) == [*once, "delete", *once, "delete"]


def test_where_there_is_no_machine_it_asks_again(tmp_path: Path) -> None:
    code, calls, output = run(
        tmp_path, "d", "z", "v5litepod-8", *FLAGS, runs=("0",), creations=("no", "no", "ok")
    )
    assert code == 0
    assert verbs(calls) == ["create", "create", "create", "ssh", "ssh", "delete"]
    assert "no machine; trying again" in output


def test_an_installation_that_fails_is_said_and_given_up_after_three_attempts(
    tmp_path: Path,
) -> None:
    code, calls, output = run(
        tmp_path, "d", "z", "v5litepod-8", *FLAGS, runs=(), INSTALL="failing install"
    )
    assert code == 7
    assert verbs(calls) == ["create", "ssh", "ssh", "ssh", "delete"]
    assert output.count("the installation on d failed with 7") == 3
    assert output.endswith("gave up after three failed installations\n")


def test_a_machine_that_is_not_up_yet_is_no_failed_installation(tmp_path: Path) -> None:
    code, calls, output = run(
        tmp_path, "d", "z", "v5litepod-8", *FLAGS, runs=("0",), INSTALL="unreachable install"
    )
    assert code == 0, output
    assert verbs(calls) == ["create", *["ssh"] * 7, "delete"]
    assert output.count("the installation on d failed with 255") == 5


def test_without_a_way_to_install_nothing_is_created(tmp_path: Path) -> None:
    code, calls, output = run(tmp_path, "d", "z", "v5litepod-8", *FLAGS, runs=(), INSTALL="")
    assert (code, calls) == (2, [])
    assert "variables: INSTALL, the command that installs tpudet" in output


def test_it_waits_after_deleting_a_machine_in_another_state(tmp_path: Path) -> None:
    code, calls, _ = run(
        tmp_path, "d", "z", "v5litepod-8", *FLAGS, runs=("preempted", "0"), RETRY_SECONDS="17"
    )
    assert code == 0
    first = next(place for place, call in enumerate(calls) if call.startswith("delete"))
    assert calls[first + 1] == "sleep 17"


def test_a_log_in_a_file_keeps_what_was_written_before_each_attempt(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    with log.open("w") as file:
        subprocess.run(
            [SCRIPT, "d", "z", "v5litepod-8", "--config", "v", "--model_dir=gs://bucket/saved/m"],
            stdout=file,
            stderr=file,
            check=True,
            timeout=60,
            env=make_world(tmp_path, runs=("cut", "0")),
        )
    text = log.read_text()
    assert "creating d (v5litepod-8)" in text
    assert text.count("step 100") == 2
    assert "\0" not in text  # as a hole in the file reads


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
        ("d", "z", "v5litepod-8", "--config", "v", "--model_dir", "output/saved/m"),
    ],
)
def test_without_a_bucket_it_starts_nothing(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    code, calls, output = run(tmp_path, *arguments, runs=())
    assert (code, calls) == (2, [])
    assert output.startswith("usage: train_preemptible.sh NAME ZONE TYPE")


def test_help_is_no_error(tmp_path: Path) -> None:
    code, calls, output = run(tmp_path, "--help", runs=())
    assert (code, calls) == (0, [])
    assert output.startswith("usage: train_preemptible.sh NAME ZONE TYPE")
