"""Signals in processes of their own: the exit code, and the second signal."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import IO

import pytest

from tpudet.trainkit.training.checkpoints import list_checkpoints
from tpudet.trainkit.training.preemption import Preemption, interrupted_by_signals

# An engine whose steps run inside one long graph call, as on a TPU.
TRAINING = textwrap.dedent(
    """
    import contextlib, logging, sys
    import tensorflow as tf
    import numpy as np
    from tpudet.trainkit.training import loop
    from tpudet.trainkit.training.engine import StepReport

    class GraphEngine:
        batch_size = 1
        is_chief = True
        num_processes = 1

        def __init__(self):
            self._step = tf.Variable(0, dtype=tf.int64)
            self._stop = tf.Variable(False)

        step = property(lambda self: int(self._step))

        @tf.function(autograph=False, input_signature=[tf.TensorSpec([], tf.int64)])
        def _steps(self, number):
            def continues(done):
                return (done < number) & ~self._stop.read_value()

            def take(done):
                with tf.control_dependencies([self._step.assign_add(1)]):
                    return done + 1

            tf.while_loop(continues, take, [tf.constant(0, tf.int64)])

        def train(self, number):
            before = self.step
            self._steps(tf.constant(1, tf.int64))
            print("deep in the graph", flush=True)
            self._steps(tf.constant(number - 1, tf.int64))
            return StepReport({"loss": 1.0}, self.step - before, 0.0, 0.1, 1.0, None)

        def any_process(self, flag):
            return flag

        def agree_on_step(self):
            pass

        def request_stop(self):
            self._stop.assign(True)

        def signature(self):
            return {"global_step": ((), "int64")}

        def snapshot(self):
            return {"global_step": np.asarray(self.step, np.int64)}

        def restart_input(self):
            pass

    logging.basicConfig(level=logging.INFO, stream=sys.stdout)
    never = 10**12
    sys.exit(
        loop.train(
            engine=GraphEngine(),
            model_dir=sys.argv[1],
            settings=loop.RunSettings(
                total_steps=never,
                iterations_per_loop=never,
                log_every_steps=never,
                checkpoint_every_steps=never,
                keep_checkpoints=1,
            ),
        )
    )
    """
)

# The suite may run under nohup.
WITH_HANGUP = "import signal\nsignal.signal(signal.SIGHUP, signal.SIG_DFL)\n"

# Not by subprocess' preexec_fn: it forks, which JAX warns of where an earlier test has started it.
IN_TERMINAL = "import fcntl, termios\nfcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"

# What a training does before its first step, such as imports and compiling; the second deep in C.
STARTING = textwrap.dedent(
    """
    import ctypes, sys, time
    from tpudet.trainkit.training.preemption import Interrupted, interrupted_by_signals

    try:
        with interrupted_by_signals():
            print("starting", flush=True)
            {work}
    except Interrupted as end:
        print("said", end)
        sys.exit(end.exit_code)
    """
)
DEADLOCK = "mutex = ctypes.create_string_buffer(64); lock = ctypes.CDLL(None).pthread_mutex_lock; "
DEADLOCK += "lock(mutex); lock(mutex)"

# Nothing that it is asked to stops it, as a graph in which a step never ends.
STUBBORN = textwrap.dedent(
    """
    import time
    from tpudet.trainkit.training.preemption import Preemption

    with Preemption(lambda: None):
        print("waiting", flush=True)
        while True:
            time.sleep(10)
    """
)


def start(script: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for(stream: IO[str] | None, text: str) -> None:
    assert stream is not None
    for line in stream:
        if text in line:
            return
    raise AssertionError(f"the process ended without {text!r}")


@pytest.mark.parametrize(
    ("number", "times"), [(signal.SIGTERM, 1), (signal.SIGHUP, 1), (signal.SIGHUP, 2)]
)
def test_a_signal_deep_in_the_graph_saves_and_exits_with_75(
    number: signal.Signals, times: int, tmp_path: Path
) -> None:
    """SIGHUP comes twice from a terminal that closes: from its shell, and from itself."""
    with start(WITH_HANGUP + TRAINING, str(tmp_path)) as process:
        try:
            wait_for(process.stdout, "deep in the graph")
            time.sleep(0.5)  # by now it is
            for _ in range(times):
                process.send_signal(number)
                time.sleep(0.05)  # or they are one
            output, _ = process.communicate(timeout=120)
        finally:
            process.kill()
    assert process.returncode == 75
    (saved,) = list_checkpoints(str(tmp_path))
    assert saved.step > 1
    assert f"Stopped by {number.name} at step {saved.step}" in output


def test_a_terminal_that_closes_leaves_a_checkpoint(tmp_path: Path) -> None:
    terminal, end = os.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", IN_TERMINAL + WITH_HANGUP + TRAINING, str(tmp_path)],
        stdin=end,
        stdout=end,
        stderr=end,
        start_new_session=True,
    ) as process:
        try:
            os.close(end)
            seen = b""
            while b"deep in the graph" not in seen:
                seen += os.read(terminal, 1000)
            time.sleep(0.5)
            os.close(terminal)  # all that the process writes now fails
            process.wait(timeout=120)
        finally:
            process.kill()
    assert process.returncode == 75
    (saved,) = list_checkpoints(str(tmp_path))
    assert saved.step > 1


def test_an_ignored_hangup_stays_ignored() -> None:
    """As under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Preemption(lambda: None) as preemption:
            os.kill(os.getpid(), signal.SIGHUP)
            preemption.wait(0.2)
            assert not preemption.requested
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize(
    ("work", "said"),
    [("time.sleep(60)", True), (DEADLOCK, False)],
    ids=["in Python", "deep in C"],
)
def test_a_signal_before_the_first_step_exits_with_75_too(
    number: signal.Signals, work: str, said: bool
) -> None:
    with start(WITH_HANGUP + STARTING.format(work=work)) as process:
        try:
            wait_for(process.stdout, "starting")
            time.sleep(0.2)
            process.send_signal(number)
            output, errors = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == 75
    assert f"{number.name}: ending with exit code 75" in errors
    assert ("said" in output) == said


def test_what_came_before_the_signals_is_there_again() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    with interrupted_by_signals(), Preemption(lambda: None):
        assert signal.getsignal(signal.SIGTERM) not in before
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


def test_a_second_signal_ends_the_process_at_once() -> None:
    with start(STUBBORN) as process:
        try:
            wait_for(process.stdout, "waiting")
            process.send_signal(signal.SIGTERM)
            wait_for(process.stderr, "SIGTERM: stopping at the next step boundary")
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 128 + signal.SIGINT


def test_a_deadline_in_a_million_years_is_no_overflow() -> None:
    with Preemption(lambda: None, deadline=time.monotonic() + 3e13):
        remaining, _ = signal.getitimer(signal.ITIMER_REAL)
    assert remaining > 365 * 24 * 3600
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
