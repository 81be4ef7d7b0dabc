"""Traces of a running training for TensorBoard, now and then and short, on either engine."""

import logging
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

import keras

from tpudet.trainkit.training.config import ProfileConfig

# A trace takes memory and disk, and a slow disk must not fall behind.
SMALLEST_PAUSE_SECONDS = 10.0

logger = logging.getLogger(__name__)


class Tracer(NamedTuple):
    """Starts a trace into a folder, and ends and writes it."""

    start: Callable[[str], None]
    stop: Callable[[], None]


def backend_tracer() -> Tracer:
    """Returns the tracer of the framework that trains; TensorBoard reads both."""
    if keras.backend.backend() == "jax":
        import jax

        return Tracer(jax.profiler.start_trace, jax.profiler.stop_trace)
    import tensorflow as tf

    return Tracer(tf.profiler.experimental.start, tf.profiler.experimental.stop)


class Profiler:
    """Takes traces as `train.profile` says.

    A trace begins at the boundary between two calls of the engine, and a thread ends it. A trace
    that fails is a line in the log: it does not end the run.

    Args:
        directory: TensorBoard's: traces lie in `plugins/profile` there.
        config: when and how long; None: never.
        tracer: of the framework.
        clock: seconds.
    """

    def __init__(
        self,
        directory: str,
        config: ProfileConfig | None,
        tracer: Callable[[], Tracer] = backend_tracer,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._directory = directory
        self._config = config
        self._make_tracer = tracer
        self._clock = clock
        self._tracer: Tracer | None = None  # of the trace that runs
        self._ends: threading.Timer | None = None
        self._lock = threading.Lock()
        self._step: int | None = None  # of the last trace, or of the first boundary
        self._time = 0.0

    def at_boundary(self, step: int) -> bool:
        """Begins a trace if one is due; returns whether it did.

        The first call never does: what comes after it compiles.

        Args:
            step: steps done.
        """
        if self._config is None:
            return False
        now = self._clock()
        if self._step is None:
            self._step, self._time = step, now
            return False
        if not self._is_due(self._config, step, now):
            return False
        with self._lock:
            if self._tracer is not None:  # one is still running: this one is left out
                return False
        self._step, self._time = step, now
        return self._start(self._config.duration_ms / 1000.0)

    def close(self) -> None:
        """Ends and writes the trace that runs, if there is one."""
        if self._ends is not None:
            self._ends.cancel()
        self._stop()

    def _is_due(self, config: ProfileConfig, step: int, now: float) -> bool:
        assert self._step is not None
        pause = now - self._time
        if config.every_steps is not None:
            passed = step // config.every_steps > self._step // config.every_steps
            return passed and pause >= SMALLEST_PAUSE_SECONDS
        assert config.every_seconds is not None
        return pause >= max(config.every_seconds, SMALLEST_PAUSE_SECONDS)

    def _start(self, seconds: float) -> bool:
        tracer = self._make_tracer()
        try:
            tracer.start(self._directory)
        except Exception as error:  # of the framework's choice; see the class
            logger.warning("No trace: %s", error)
            return False
        with self._lock:
            self._tracer = tracer
        logger.info("Tracing for %g s into %s/plugins/profile", seconds, self._directory)
        self._ends = threading.Timer(seconds, self._stop)
        self._ends.daemon = True
        self._ends.start()
        return True

    def _stop(self) -> None:
        with self._lock:
            tracer, self._tracer = self._tracer, None
            if tracer is None:
                return
            try:
                tracer.stop()
            except Exception as error:  # of the framework's choice; see the class
                logger.warning("The trace was not written: %s", error)
