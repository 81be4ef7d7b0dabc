"""A step runs once, and again if something it depends on changed; never twice at the same time."""

import errno
import json
import os
import threading
from pathlib import Path

import pytest
import tensorflow as tf

from tpudet.trainkit.command_line import new_parser, run_command
from tpudet.trainkit.errors import UserError
from tpudet.trainkit.files.remote import os_errors
from tpudet.trainkit.files.storage import read_text, write_text
from tpudet.trainkit.jobs import steps
from tpudet.trainkit.jobs.steps import Step, list_steps, reason_to_run, run_step


def doubling(folder: str, times: int = 2, runs: list[int] | None = None) -> Step:
    """Writes in.txt repeated to out.txt, and its length to out.length."""
    outputs = (f"{folder}/made/out.txt", f"{folder}/made/out.length")

    def run() -> str:
        text = (read_text(f"{folder}/in.txt") or "") * times
        write_text(outputs[0], text)
        write_text(outputs[1], str(len(text)))
        if runs is not None:
            runs.append(times)
        return f"{len(text)} letters"

    code = ("tpudet.trainkit.files",)
    return Step("repeat", (f"{folder}/in.txt",), {"times": times}, outputs, run, code)


def run_in_command(step: Step) -> int:
    """The exit code of a command that runs the step."""
    return run_command(new_parser("tpudet test", None), [], lambda _: int(not run_step(step)))


@pytest.mark.parametrize("where", ["local", "ram"])
def test_runs_again_only_for_a_reason(where, tmp_path, capsys, monkeypatch) -> None:
    folder = str(tmp_path) if where == "local" else "ram://steps"
    if where == "ram":
        tf.io.gfile.makedirs(folder)
    write_text(f"{folder}/in.txt", "abc")
    runs: list[int] = []
    step = doubling(folder, runs=runs)
    assert reason_to_run(step) == "not made yet"
    assert run_step(step)
    assert capsys.readouterr().out == "repeat (not made yet) ...\nrepeat: 6 letters\n"
    assert not run_step(step)
    assert capsys.readouterr().out == "repeat: up to date. 6 letters\n"
    assert reason_to_run(step) is None

    write_text(f"{folder}/in.txt", "abd")  # as long as before
    assert reason_to_run(step) == f"{folder}/in.txt changed"
    assert run_step(step)
    assert read_text(step.outputs[0]) == "abdabd"
    assert reason_to_run(doubling(folder, 3)) == "has other options"
    tf.io.gfile.remove(step.outputs[1])
    assert reason_to_run(step) == f"{step.outputs[1]} is missing"
    assert run_step(step)
    write_text(step.outputs[0], "short")
    assert reason_to_run(step) == f"{step.outputs[0]} is changed"
    assert run_step(step)
    monkeypatch.setattr(steps, "code_digest", lambda modules: "another")
    assert reason_to_run(step) == "the code changed"
    assert run_step(step)
    assert not run_step(step)
    assert runs == [2] * 5
    names = sorted(tf.io.gfile.listdir(f"{folder}/made"))
    assert names == ["out.length", "out.txt", "out.txt.step.json"]


@pytest.mark.parametrize("where", ["local", "ram"])
def test_outputs_no_longer_made_are_removed_also_after_a_run_that_failed(where, tmp_path) -> None:
    folder = str(tmp_path) if where == "local" else "ram://fewer_outputs"
    tf.io.gfile.makedirs(folder)
    write_text(f"{folder}/in.txt", "abc")
    both = doubling(folder)
    assert run_step(both)
    write_text(f"{folder}/made/own.txt", "of the user")
    fewer = both._replace(
        outputs=both.outputs[:1], run=lambda: write_text(both.outputs[0], "") or ""
    )
    with pytest.raises(ZeroDivisionError):
        run_step(fewer._replace(run=lambda: str(1 // 0)))
    assert read_text(both.outputs[1]) == "6"
    assert run_step(fewer)
    names = sorted(tf.io.gfile.listdir(f"{folder}/made"))
    assert names == ["out.txt", "out.txt.step.json", "own.txt"]


def test_a_file_that_no_step_made_is_kept(tmp_path, capsys) -> None:
    (tmp_path / "in.txt").write_text("abc")
    step = doubling(str(tmp_path))
    precious = Path(step.outputs[1])
    precious.parent.mkdir()
    precious.write_text("precious")
    assert run_in_command(step) == 2
    assert f"{precious} already exists" in capsys.readouterr().err
    assert [path.name for path in precious.parent.iterdir()] == [precious.name]
    assert run_step(step, overwrite=True)
    assert precious.read_text() == "6"


@pytest.mark.parametrize("fault", [OSError(errno.ENOSPC, "No space left on device"), "gfile"])
def test_a_full_disk_leaves_nothing(fault, tmp_path, capsys) -> None:
    (tmp_path / "in.txt").write_text("abc")
    step = doubling(str(tmp_path))

    def fill() -> str:
        if isinstance(fault, OSError):
            raise fault
        with os_errors():
            raise tf.errors.ResourceExhaustedError(None, None, "out.txt; No space left on device")

    assert run_in_command(step._replace(run=fill)) == 2
    assert "No space left on device" in capsys.readouterr().err
    assert list((tmp_path / "made").iterdir()) == []

    assert run_step(step)
    (tmp_path / "in.txt").write_text("abcd")

    def fail_between() -> str:
        write_text(step.outputs[0], "new")
        return fill()

    # The old run's record must not vouch for what is half new.
    assert run_in_command(step._replace(run=fail_between)) == 2
    assert reason_to_run(step) == "was not finished"
    assert run_step(step)
    assert read_text(step.outputs[0]) == "abcdabcd"


def test_a_missing_input_is_named(tmp_path, capsys) -> None:
    assert run_in_command(doubling(str(tmp_path))) == 2
    assert capsys.readouterr().err == f"tpudet test: {tmp_path}/in.txt does not exist.\n"
    assert list(tmp_path.iterdir()) == []


def test_a_missing_input_is_named_before_anything_is_run(tmp_path) -> None:
    with pytest.raises(UserError, match=r"in.txt does not exist"):
        reason_to_run(doubling(str(tmp_path)))
    with pytest.raises(UserError, match=r"in.txt does not exist"):
        list_steps([doubling(str(tmp_path))])


def test_a_record_from_elsewhere_removes_nothing_elsewhere(tmp_path) -> None:
    (tmp_path / "in.txt").write_text("abc")
    (tmp_path / "own.txt").write_text("")
    step = doubling(str(tmp_path))
    assert run_step(step)
    record = json.loads(read_text(step.step_path) or "")
    record["outputs"] += ["../own.txt", str(tmp_path / "own.txt"), "a/../../own.txt"]
    write_text(step.step_path, json.dumps(record | {"finished": False}))
    assert run_step(step)
    assert (tmp_path / "own.txt").exists()


def test_a_really_full_disk(tmp_path) -> None:
    """/dev/full refuses every byte, as a full disk does."""
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full here")
    (tmp_path / "in.txt").write_text("abc")
    step = doubling(str(tmp_path))

    def run() -> str:
        with open("/dev/full", "w") as file:
            file.write("x")
        return ""

    with pytest.raises(UserError, match="No space left on device"):
        run_step(step._replace(run=run))
    assert list((tmp_path / "made").iterdir()) == []


def record_with(**fields: object) -> str:
    whole = {"inputs": [], "options": {}, "code": "", "finished": True, "sizes": [], "summary": ""}
    return json.dumps(whole | fields)


@pytest.mark.parametrize(
    "record",
    [
        *("", "{", "[]", "{}", '{"finished": true}', "[" * 100_000),
        *(record_with(sizes=None), record_with(inputs=None), record_with(inputs=[3])),
    ],
)
def test_a_damaged_record_is_that_of_an_unfinished_run(record: str, tmp_path) -> None:
    write_text(f"{tmp_path}/in.txt", "abc")
    step = doubling(str(tmp_path))
    assert run_step(step)
    write_text(step.step_path, record)
    assert reason_to_run(step) == "was not finished"
    assert run_step(step)
    assert not run_step(step)


def test_two_at_once(tmp_path, capsys) -> None:
    (tmp_path / "in.txt").write_text("abc")
    step = doubling(str(tmp_path))
    begun, go_on = threading.Event(), threading.Event()

    def slow() -> str:
        begun.set()
        assert go_on.wait(20)
        return step.run()

    first = threading.Thread(target=run_step, args=(step._replace(run=slow),))
    first.start()
    assert begun.wait(20)
    assert run_in_command(step) == 2
    message = capsys.readouterr().err
    assert f"{step.outputs[0]} is being written by process {os.getpid()} on" in message
    assert not Path(step.outputs[0]).exists()
    go_on.set()
    first.join()
    assert read_text(step.outputs[0]) == "abcabc"
    assert not Path(step.claim_path).exists()
    assert os.listdir(tmp_path / "made").count("out.txt") == 1


def test_a_run_killed_at_its_very_end_leaves_no_claim_behind(tmp_path, hold_claim) -> None:
    write_text(f"{tmp_path}/in.txt", "abc")
    step = doubling(str(tmp_path))
    assert run_step(step)
    with hold_claim(step.claim_path):
        claim = Path(step.claim_path).read_text()
        assert not run_step(step)  # up to date either way
        assert Path(step.claim_path).exists()
    Path(step.claim_path).write_text(claim)
    assert not run_step(step)
    assert not Path(step.claim_path).exists()
