"""The watchdog names the step that is waited for in vain."""

import threading
import time

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
