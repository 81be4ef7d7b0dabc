"""The process that compiles: its events, its crashes, and the check of libtpu before it starts."""

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tpudet.trainkit.errors import UserError
from tpudet.trainkit.training import tpu_compiler
from tpudet.trainkit.training.tpu_compiler import NoCompilerError, check_compiler, compile_steps
from tpudet.trainkit.training.tpu_machines import find_machine
from tpudet.trainkit.training.tpu_plan import CompiledStep, FailedStep

REQUEST = {"steps": ["train", "evaluate"], "batch_size": 64}
SCRIPT = """
import json, os, signal, sys
request = json.loads(sys.stdin.readline())
print("a line of somebody else")
def emit(**event):
    print(json.dumps(event), flush=True)
"""
COMPILED = """
emit(event="doing", what="compiling the train step")
step = dict.fromkeys(sys.argv[1].split(), 1) | {"step": "train", "batch_size": 64}
emit(event="compiled", step=step)
"""


def run(body: str, progress: Callable[[str], None] = lambda line: None):
    command = [sys.executable, "-c", SCRIPT + body, " ".join(CompiledStep._fields)]
    return compile_steps(command, REQUEST, environment={}, progress=progress)


def test_events_become_steps_and_lines_of_progress() -> None:
    lines: list[str] = []
    failed = 'emit(event="failed", step={"step": "evaluate", "batch_size": 8, "message": "no"})'
    steps = run(COMPILED + failed, lines.append)
    assert [step.step for step in steps] == ["train", "evaluate"]
    assert isinstance(steps[0], CompiledStep)
    assert steps[0].memory_bytes == 1 + 1 - 1 + 1 + 1 + 1
    assert steps[1] == FailedStep("evaluate", 8, "unsupported", "no")
    assert lines == ["compiling the train step"]


def test_a_crash_is_the_failure_of_the_step_at_hand() -> None:
    steps = run(COMPILED + "print('boom', file=sys.stderr)\nos.kill(os.getpid(), signal.SIGSEGV)")
    assert isinstance(steps[1], FailedStep)
    assert (steps[1].step, steps[1].kind) == ("evaluate", "compiler")
    assert "died of SIGSEGV" in steps[1].message
    assert "libtpu==0.0.52" in steps[1].message
    assert "boom" in steps[1].message


def test_an_error_of_the_process_shows_its_last_lines() -> None:
    (step,) = run("raise KeyError('missing')")
    assert isinstance(step, FailedStep)
    assert (step.step, step.kind) == ("train", "compiler")
    assert step.message.startswith("its process ended with exit code 1\n")
    assert step.message.endswith("KeyError: 'missing'")


def test_wrong_input_of_the_process_is_a_message_here() -> None:
    with pytest.raises(UserError, match="^train.batch_size is 7$"):
        run('emit(event="wrong_input", message="train.batch_size is 7")')


def test_a_long_step_shows_that_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tpu_compiler, "_TICK_SECONDS", 0.05)
    lines: list[str] = []
    run('emit(event="doing", what="compiling")\nimport time; time.sleep(0.3)', lines.append)
    assert "compiling: 0 s" in lines


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_it_ends_with_the_command_that_started_it(
    number: signal.Signals,
    tmp_path: Path,
    wait_for: Callable[..., None],
    is_running: Callable[[int], bool],
) -> None:
    pid_file = tmp_path / "pid"
    compiles = f"""
import json, os, pathlib, sys, time
from tpudet.trainkit.training.tpu_compiler import end_with_parent
json.loads(sys.stdin.readline())
end_with_parent()
pathlib.Path({str(pid_file)!r}).write_text(f"{{os.getpid()}}\\n")
time.sleep(300)
"""
    plans = f"""
import os, sys
from tpudet.trainkit.training.tpu_compiler import compile_steps
command = [sys.executable, "-c", {compiles!r}]
compile_steps(command, {REQUEST!r}, environment=os.environ, progress=print)
"""
    with subprocess.Popen([sys.executable, "-c", plans]) as process:
        wait_for(lambda: pid_file.exists() and pid_file.read_text().endswith("\n"), process)
        pid = int(pid_file.read_text())
        assert is_running(pid)
        process.send_signal(number)
    wait_for(lambda: not is_running(pid))


@pytest.mark.parametrize(
    ("libtpu", "message"),
    [
        (None, "libtpu is not installed.*libtpu==0.0.52.*PYTHONPATH=libtpu_only"),
        ("0.0.17", "libtpu 0.0.17 crashes.*at least 0.0.24.*libtpu==0.0.52"),
        ("0.0.21.1", "libtpu 0.0.21.1 crashes"),
    ],
)
def test_an_unusable_libtpu_is_answered_with_the_version_to_install(
    monkeypatch: pytest.MonkeyPatch, libtpu: str | None, message: str
) -> None:
    def version(package: str) -> str:
        if package == "libtpu" and libtpu is None:
            raise tpu_compiler.PackageNotFoundError(package)
        return libtpu or "0.10.2"

    monkeypatch.setattr(tpu_compiler, "version", version)
    with pytest.raises(NoCompilerError, match=message):
        check_compiler()


@pytest.mark.parametrize("libtpu", ["0.0.24", "0.0.30", "0.0.42.1", "0.0.52", "0.1.0"])
def test_a_libtpu_that_works_passes(monkeypatch: pytest.MonkeyPatch, libtpu: str) -> None:
    monkeypatch.setattr(tpu_compiler, "version", lambda package: libtpu)
    check_compiler()


def test_the_compiler_asks_no_metadata_server_and_sees_no_tpu() -> None:
    environment = tpu_compiler.compiler_environment(find_machine("v5e-8"))
    assert environment["TPU_SKIP_MDS_QUERY"] == "1"
    assert environment["TPU_WORKER_HOSTNAMES"] == "localhost"
    assert environment["TPU_ACCELERATOR_TYPE"] == "v5litepod-8"
    assert (environment["KERAS_BACKEND"], environment["JAX_PLATFORMS"]) == ("jax", "cpu")
