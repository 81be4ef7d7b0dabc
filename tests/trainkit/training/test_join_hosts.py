"""Which hosts train together: by arguments, and as a TPU pod describes itself."""

import argparse
import os

import pytest

from tpudet.trainkit.backend_arguments import (
    add_backend_argument,
    add_hosts_arguments,
    add_tensorflow_argument,
)
from tpudet.trainkit.command_line import new_parser
from tpudet.trainkit.errors import UserError
from tpudet.trainkit.training import jax_hosts
from tpudet.trainkit.training.jax_hosts import (
    LostHostError,
    ending_if_lost,
    join_hosts,
    several_hosts,
)
from tpudet.trainkit.weights.tensor_bundle import UnavailableCheckpointError


@pytest.fixture(autouse=True)
def _no_tpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("TPU_", "COLAB_", "JAX_")):
            monkeypatch.delenv(name)


def parse(*words: str) -> argparse.Namespace:
    parser = new_parser("train", "")
    add_backend_argument(parser)
    add_hosts_arguments(parser)
    return parser.parse_args(words)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("--num_processes", "2"),
            "--coordinator_address and --process_id must be given too",
        ),
        (
            ("--coordinator_address", "a:1", "--num_processes", "2", "--process_id", "0"),
            "--num_processes is 2, and --backend is auto: several hosts train with --backend jax",
        ),
        (
            (
                *("--backend", "jax", "--coordinator_address", "a:1"),
                *("--num_processes", "2", "--process_id", "2"),
            ),
            "--process_id is 2; with --num_processes 2 it must be 0 to 1",
        ),
    ],
)
def test_arguments_that_do_not_fit_together_are_refused(
    words: tuple[str, ...], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        join_hosts(parse(*words))


def test_the_environment_gives_the_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAX_NUM_PROCESSES", "4")
    monkeypatch.setenv("JAX_PROCESS_ID", "3")
    arguments = parse("--coordinator_address", "a:1")
    assert (arguments.num_processes, arguments.process_id) == (4, 3)


def test_empty_variables_of_the_environment_say_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"):
        monkeypatch.setenv(name, "")
    assert not join_hosts(parse("--backend", "jax"))


def test_one_host_has_nobody_to_join() -> None:
    with several_hosts(parse()):
        pass
    assert not join_hosts(parse("--backend", "jax"))


def test_one_host_that_loses_its_tpu_ends_with_its_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sentences: list[str] = []
    monkeypatch.setattr(jax_hosts, "end_process", sentences.append)
    with several_hosts(parse()):
        raise LostHostError("Step 7 cannot be finished")
    with ending_if_lost():  # of other commands than train
        raise LostHostError("Batch 2 cannot be finished")
    with several_hosts(parse()):
        raise UnavailableCheckpointError("model.ckpt-9.index cannot be read now")
    assert sentences == [
        "Step 7 cannot be finished",
        "Batch 2 cannot be finished",
        "model.ckpt-9.index cannot be read now",
    ]
    with pytest.raises(ValueError, match="a fault"), several_hosts(parse()):
        raise ValueError("a fault")


def test_jax_does_not_export_and_the_message_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    parser = new_parser("export", "")
    add_tensorflow_argument(parser)
    with pytest.raises(SystemExit):
        parser.parse_args(["--backend", "jax"])
    assert "graph of TensorFlow. Checkpoints that JAX has trained" in capsys.readouterr().err
    assert parser.parse_args(["--backend", "auto"]).backend == "tensorflow"


@pytest.mark.parametrize(
    ("per_device", "is_warned"), [(8, False), (64, False), (4, True), (12, True)]
)
def test_a_batch_that_a_tpu_cannot_fill_is_warned_of(per_device: int, is_warned: bool) -> None:
    pytest.importorskip("jax")
    from tpudet.trainkit.training.jax_devices import small_batch_warning

    warning = small_batch_warning(per_device)
    assert bool(warning) == is_warned
    assert not warning or f"gets {per_device} images" in warning


def test_all_hosts_end_together_however_long_one_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """JAX waits for five minutes only, and then aborts the slow one, too."""
    jax = pytest.importorskip("jax")
    calls: list[str] = []
    monkeypatch.setattr(jax_hosts, "join_hosts", lambda arguments: True)
    monkeypatch.setattr(jax_hosts, "wait_for_hosts", calls.append)
    monkeypatch.setattr(jax.distributed, "shutdown", lambda: calls.append("shutdown"))
    with several_hosts(parse()):
        calls.append("work")
    assert calls == ["work", "finished", "shutdown"]

    def lose(what: str) -> None:
        raise RuntimeError("UNAVAILABLE: process 0")

    monkeypatch.setattr(jax_hosts, "wait_for_hosts", lose)
    monkeypatch.setattr(jax_hosts, "end_process", calls.append)
    with several_hosts(parse()):
        pass
    assert calls[3].startswith("The end of the run cannot be finished: another host is gone (UNAV")
