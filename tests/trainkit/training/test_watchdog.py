"""The watchdog names the step that is waited for in vain."""

import threading
import time

import pytest

from tpudet.trainkit.training.watchdog import Watchdog, restart_sentence


class Ends:
    """Collects the sentences instead of ending the process."""

    def __init__(self) -> None:
        self.sentences: list[str] = []
        self.came = threading.Event()

    def __call__(self, sentence: str) -> None:
        self.sentences.append(sentence)
        self.came.set()


def test_a_block_that_lasts_too_long_is_named() -> None:
    ends = Ends()
    watchdog = Watchdog(0.2, end=ends)
    for step in range(5):
        with watchdog.watch(f"Step {step}"):
            time.sleep(0.06)  # together longer than the limit
    assert not ends.sentences
    with watchdog.watch("Step 7"):
        assert ends.came.wait(20)
    (sentence,) = ends.sentences
    assert sentence.startswith("Step 7 cannot be finished: it has not ended for 0.2 s")
    assert "exit code 75; start it again" in sentence


def test_compiling_has_no_limit_but_lost_hosts_count() -> None:
    ends, lost = Ends(), threading.Event()
    watchdog = Watchdog(
        0.1, find_fault=lambda: "no sign of life from process 1" if lost.is_set() else "", end=ends
    )
    with watchdog.watch("Batch 1", is_timed=False):
        assert not ends.came.wait(0.5)
        lost.set()
        assert ends.came.wait(20)
    assert ends.sentences == [restart_sentence("Batch 1", "no sign of life from process 1")]


def test_a_host_may_report_an_evaluation_for_longer_than_a_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The others wait for it before their next steps; only what they then do together is timed."""
    jax = pytest.importorskip("jax")
    from tpudet.trainkit.training import jax_devices
    from tpudet.trainkit.training.jax_engine import JaxEngine

    class TwoHosts(jax_devices.JaxDevices):
        num_processes = 2  # pyright: ignore[reportAssignmentType, reportIncompatibleMethodOverride]

    ends = Ends()
    engine = JaxEngine.__new__(JaxEngine)
    engine._devices = TwoHosts(jax.devices("cpu"), watchdog=Watchdog(0.1, end=ends))
    late, stuck = [0.5], [0.0]  # seconds until the other host comes, and until the devices answer

    def take(seconds: list[float]) -> bool:
        return ends.came.wait(seconds.pop()) if seconds else False

    monkeypatch.setattr(jax_devices, "wait_for_hosts", lambda what: take(late))
    monkeypatch.setattr(jax_devices, "gather_objects", lambda flag: [flag, take(late or stuck)])
    assert not engine.any_process(False)
    assert not ends.sentences

    stuck.append(20.0)
    assert engine.any_process(False)
    assert ends.sentences[0].startswith("An agreement between the hosts cannot be finished: it has")
