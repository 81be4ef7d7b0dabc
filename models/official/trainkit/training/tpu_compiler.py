"""Runs the TPU's compiler in a process of its own, because some versions crash with SIGSEGV.

The process reads one request from standard input and writes events to standard output, one JSON
object per line; what else is printed there is ignored. Its input stays open: where it ends, this
process has died, and that one ends too.
"""

import json
import os
import queue
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import IO, Any

from tpudet.trainkit.errors import UserError
from tpudet.trainkit.training.tpu_machines import TpuMachine
from tpudet.trainkit.training.tpu_plan import CompiledStep, FailedStep, Step, read_failure

# Below, an offline compile dies of SIGSEGV: tried are 0.0.17 and 0.0.21.1, which do, and 0.0.24,
# 0.0.30, 0.0.42 and 0.0.52, which do not.
OLDEST_LIBTPU = (0, 0, 24)
TESTED_LIBTPU = "0.0.52"  # with jax 0.7.2 to 0.10.2

_TICK_SECONDS = 15.0
_INSTALL = (
    f"Install the one that was tried: pip install libtpu=={TESTED_LIBTPU}; or, to leave this "
    f"environment as it is: pip install --target libtpu_only libtpu=={TESTED_LIBTPU}, and start "
    "the command with PYTHONPATH=libtpu_only before it"
)


class NoCompilerError(UserError):
    """libtpu or JAX is missing or cannot be used."""


def check_compiler() -> None:
    """Checks that JAX and a libtpu that can compile without a TPU are installed.

    Raises:
        NoCompilerError: names the version to install.
    """
    for package in ("jax", "libtpu"):
        try:
            found = version(package)
        except PackageNotFoundError:
            extra = "pip install 'tpudet[jax]'" if package == "jax" else _INSTALL
            raise NoCompilerError(
                f"{package} is not installed, and without it nothing is compiled for a TPU. {extra}"
            ) from None
    if _numbers(found) < OLDEST_LIBTPU:
        raise NoCompilerError(
            f"libtpu {found} crashes where there is no TPU; it must be at least "
            f"{'.'.join(map(str, OLDEST_LIBTPU))}. {_INSTALL}"
        )


def compiler_environment(machine: TpuMachine) -> dict[str, str]:
    """Returns the environment in which the process compiles for the machine without a TPU."""
    return {
        **os.environ,
        "KERAS_BACKEND": "jax",
        "JAX_PLATFORMS": "cpu",  # holds the arrays; the topology needs no device
        "TPU_SKIP_MDS_QUERY": "1",  # else libtpu waits for Google's metadata server
        "TPU_WORKER_HOSTNAMES": "localhost",
        "TPU_ACCELERATOR_TYPE": machine.accelerator_type,
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # a lock file would serve devices that are not there
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "TPU_MIN_LOG_LEVEL": "3",
    }


def compile_steps(
    command: Sequence[str],
    request: Mapping[str, Any],
    *,
    environment: Mapping[str, str],
    progress: Callable[[str], None],
) -> list[Step]:
    """Runs the process and returns what it reports of each step.

    Args:
        command: starts the process.
        request: the JSON object that it reads; "steps" and "batch_size" are read here too.
        environment: from `compiler_environment`.
        progress: shows a line; called at least every 15 seconds.

    Raises:
        UserError: the process reports wrong input.
    """
    done: list[Step] = []
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors,
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment,
            text=True,
        ) as process,
    ):
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            for event in _events(process.stdout, progress):
                _take(event, done, progress)
            code = process.wait()
        finally:
            process.kill()  # nothing if it has ended
        if code:
            errors.seek(0)
            done.append(_crash(code, errors.read(), request, done))
    return done


def end_with_parent() -> None:
    """Ends this process as soon as its input ends; an abandoned compilation would run for minutes.

    For the process that compiles, when it has read its request.
    """

    def wait() -> None:
        while os.read(0, 1):  # not `sys.stdin`, whose lock Python wants at its end
            pass
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _events(stream: IO[str], progress: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    """Yields the events until the stream ends, and says meanwhile how long the last one is past."""
    lines: queue.Queue[str | None] = queue.Queue()

    def read() -> None:
        for line in stream:
            lines.put(line)
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    begin, doing = time.monotonic(), "starting"
    while True:
        try:
            line = lines.get(timeout=_TICK_SECONDS)
        except queue.Empty:
            progress(f"{doing}: {time.monotonic() - begin:.0f} s")
            continue
        if line is None:
            return
        if line.startswith('{"event"'):
            event = json.loads(line)
            if event["event"] == "doing":
                begin, doing = time.monotonic(), event["what"]
            yield event


def _take(
    event: dict[str, Any],
    done: list[Step],
    progress: Callable[[str], None],
) -> None:
    match event["event"]:
        case "doing":
            progress(event["what"])
        case "compiled":
            done.append(CompiledStep(**event["step"]))
        case "failed":
            done.append(read_failure(**event["step"]))
        case "wrong_input":
            raise UserError(event["message"])


def _crash(code: int, errors: str, request: Mapping[str, Any], done: Sequence[Step]) -> FailedStep:
    step = request["steps"][min(len(done), len(request["steps"]) - 1)]
    last = "\n".join(errors.strip().splitlines()[-3:])
    if code > 0:
        message = f"its process ended with exit code {code}\n{last}"
    else:
        message = f"its process died of {signal.Signals(-code).name}. {_INSTALL}\n{last}"
    return FailedStep(step, request["batch_size"], "compiler", message)


def _numbers(text: str) -> tuple[int, ...]:
    """The leading numbers of a version."""
    numbers = []
    for part in text.split("."):
        if not part.isdecimal():
            break
        numbers.append(int(part))
    return tuple(numbers)
