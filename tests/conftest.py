"""One TensorFlow import a process, two logical CPU devices, and the real data when it is there."""

import importlib.util
import logging
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import pytest
import tensorflow as tf

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The real data sets, where TPUDET_TEST_DATA says; skips the test where it is unset."""
    folder = os.environ.get("TPUDET_TEST_DATA")
    if not folder:
        pytest.skip("TPUDET_TEST_DATA is not set: real-data test")
    return Path(folder)


@pytest.fixture(scope="session", autouse=True)
def _datasets_end_at_once() -> Iterator[None]:
    """Datasets of tests are not tuned either: see `without_tuning`.

    An iterator in a cycle of references ends where Python collects garbage, amid any later test.
    """
    from tensorflow.python.data.ops.dataset_ops import DatasetV2

    from tpudet.trainkit.records import without_tuning

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DatasetV2, "_apply_debug_options", without_tuning)  # called by every iterator
        yield


@pytest.fixture(autouse=True)
def _no_leftover_precision() -> Iterator[None]:
    """A test that sets a global Keras precision must not change the ones after it."""
    yield
    import keras

    keras.config.set_dtype_policy("float32")


@pytest.fixture(autouse=True)
def _every_cpu_computes_in_float32(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """`precision: auto` is float32 in tests, whatever the CPU that they run on is faster with."""
    from tpudet.trainkit import cpu

    measured = cpu.gains_from_bfloat16
    measured.cache_clear()  # a fixture of a whole module is made before this one
    monkeypatch.setattr(cpu, "multiplies_bfloat16", lambda: False)
    yield
    measured.cache_clear()


@pytest.fixture(autouse=True)
def _no_leftover_log_handlers() -> Iterator[None]:
    """A command logs to the standard output of its own test, which is closed afterwards."""
    before = logging.getLogger().handlers[:]
    yield
    logging.getLogger().handlers[:] = before


@pytest.fixture(scope="session")
def sample_part(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A converted part of 16 training and 4 validation images, drawn by the project itself."""
    from tpudet.detection.commands.make_tfrecords import main as make_tfrecords
    from tpudet.detection.preparation.sources.sample_set import write_sample_set

    folder = tmp_path_factory.mktemp("sample")
    write_sample_set(str(folder), num_images=20, seed=1)
    part = folder / "converted/tiny"
    for split in ("train", "val"):
        source = ["--annotations", f"{folder}/{split}_boxes.csv", "--images", f"{folder}/{split}"]
        source += ["--format", "open_images", "--include_unlabeled", "--workers", "1"]
        source += ["--classes", f"{folder}/classes.csv", "--split", split, "--output", str(part)]
        assert make_tfrecords([*source, "--num_shards", "2"]) == 0
    return str(part)


@pytest.fixture(scope="session")
def ray_folder() -> Iterator[str]:
    """A short path: the sockets below it may not exceed 107 characters."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("ray is not installed: cluster test")
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder:
        yield folder


@pytest.fixture(scope="session")
def no_cluster() -> dict[str, str]:
    """The environment of a process that knows of no Ray cluster."""
    others = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    # Ray gives its workers a niceness of 15, with which they starve beside other work, and kills
    # them where other processes fill the memory.
    settings = {"RAY_worker_niceness": "0", "RAY_memory_monitor_refresh_ms": "0"}
    return others | settings | {"RAY_USAGE_STATS_ENABLED": "0"}


class TwoNodes:
    """A Ray cluster of two nodes with one CPU each, beside a head that runs nothing."""

    def __init__(self, process: subprocess.Popen[str], environment: dict[str, str]) -> None:
        self._process = process
        self.environment = environment | {"RAY_ADDRESS": self._answer("")}

    def remove_node(self) -> None:
        """Takes one node away at once."""
        assert self._answer("\n") == "removed"

    def _answer(self, command: str) -> str:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(command)
        self._process.stdin.flush()
        return self._process.stdout.readline().strip()


@pytest.fixture
def two_nodes(ray_folder: str, no_cluster: dict[str, str]) -> Iterator[TwoNodes]:
    with (
        open(f"{ray_folder}/cluster.log", "w") as log,
        subprocess.Popen(
            [sys.executable, Path(__file__).with_name("two_node_cluster.py")],
            env=no_cluster | {"RAY_TMPDIR": ray_folder},
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
        ) as process,
    ):
        yield TwoNodes(process, no_cluster)
        assert process.stdin
        process.stdin.close()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()  # takes its cluster with it


@pytest.fixture(scope="session")
def wait_for() -> Callable[..., None]:
    """Waits until a condition holds, and while a process is at work where one is given."""

    def wait(
        condition: Callable[[], object],
        process: subprocess.Popen | None = None,
        seconds: float = 240,  # no more than a guard: beside other work a command starts slowly
    ) -> None:
        end = time.monotonic() + seconds
        while not condition():
            assert process is None or process.poll() is None, "ended too early"
            assert time.monotonic() < end, "waited in vain"
            time.sleep(0.01)

    return wait


@pytest.fixture(scope="session")
def is_running() -> Callable[[int], bool]:
    """Whether there is such a process that has not ended; nobody may have asked for its code."""

    def runs(process: int) -> bool:
        try:
            return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
        except OSError:
            return False

    return runs


@pytest.fixture(scope="session")
def act_when() -> Callable[..., threading.Thread]:
    """Acts in another thread as soon as a condition holds, or after minutes in any case."""

    def start(condition: Callable[[], bool], act: Callable[[], object]) -> threading.Thread:
        def wait_and_act() -> None:
            end = time.monotonic() + 240
            while not condition() and time.monotonic() < end:
                time.sleep(0.01)
            act()

        thread = threading.Thread(target=wait_and_act)
        thread.start()
        return thread

    return start


@pytest.fixture(scope="session")
def run_limited() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs Python on a file that may be a bomb: at most 1 GB of memory and 30 s of a core."""
    # Measured by a small process: the peak of a process begins with that of the one it forks from.
    # Its limit of addresses only protects the machine: libraries reserve more than they use.
    program = """
import resource, subprocess, sys
resource.setrlimit(resource.RLIMIT_AS, (12 << 30, 12 << 30))
code = subprocess.call([sys.executable, *sys.argv[1:]], stdout=sys.stderr, timeout=150)
usage = resource.getrusage(resource.RUSAGE_CHILDREN)
print(code, usage.ru_utime + usage.ru_stime, usage.ru_maxrss)
"""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", program, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.stdout, done.stderr
        code, seconds, kilobytes = done.stdout.split()
        assert float(seconds) < 30, done.stderr
        assert int(kilobytes) < 1_000_000, done.stderr
        return subprocess.CompletedProcess(command, int(code), stderr=done.stderr)

    return run


@pytest.fixture
def hold_claim() -> Callable[[str | os.PathLike[str]], AbstractContextManager[int]]:
    """Makes another process hold a claim while a block runs; the block gets its process id."""
    program = """
import sys
from tpudet.trainkit.files.claims import Claim
with Claim(sys.argv[1], output=sys.argv[1]):
    print("claimed", flush=True)
    sys.stdin.readline()
"""

    @contextmanager
    def hold(path: str | os.PathLike[str]) -> Iterator[int]:
        with subprocess.Popen(
            [sys.executable, "-c", program, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as process:
            assert process.stdout
            assert process.stdout.readline() == b"claimed\n"
            yield process.pid
            process.communicate(b"\n")
        assert process.returncode == 0

    return hold
