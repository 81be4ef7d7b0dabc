"""A command that runs another as its step: exit codes, and what happens when it is told to end."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tpudet.trainkit.jobs.child_process import run_child

# Counts the signals that it gets in a quarter of a second, and ends.
CHILD = """
import pathlib, signal, sys, time
got = []
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, lambda number, frame: got.append(number))
print("ready", flush=True)
while not got:
    time.sleep(0.01)
time.sleep(0.25)
pathlib.Path(sys.argv[1]).write_text(" ".join(map(str, got)))
sys.exit(75)
"""


@pytest.mark.parametrize("code", [0, 3])
def test_the_exit_code_is_that_of_the_command(code: int) -> None:
    before = signal.getsignal(signal.SIGTERM)
    assert run_child([sys.executable, "-c", f"raise SystemExit({code})"]) == code
    assert signal.getsignal(signal.SIGTERM) == before


def test_the_environment_is_what_was_given() -> None:
    program = "import os; raise SystemExit(int(os.environ['NUMBER']))"
    environment = {**os.environ, "NUMBER": "7"}
    assert run_child([sys.executable, "-c", program], environment=environment) == 7


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize("to_group", [False, True], ids=["to the process", "to its group"])
def test_a_signal_reaches_the_command_once_and_its_end_is_awaited(
    number: signal.Signals, to_group: bool, tmp_path: Path
) -> None:
    result = tmp_path / "signals"
    program = textwrap.dedent(f"""
        import signal, sys
        from tpudet.trainkit.jobs.child_process import run_child
        signal.signal({int(number)}, signal.SIG_DFL)  # the suite may run under nohup
        for _ in range(2):  # the second is not begun
            run_child([sys.executable, "-c", {CHILD!r}, {str(result)!r}])
    """)
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, process_group=0
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        (os.killpg if to_group else os.kill)(process.pid, number)
        assert process.stdout.read() == ""
    assert process.returncode == 128 + number
    assert result.read_text() == str(int(number))


def test_a_signal_that_is_ignored_stays_so(tmp_path: Path) -> None:
    """As under nohup: neither this process nor the command ends."""
    program = textwrap.dedent("""
        import signal, sys
        from tpudet.trainkit.jobs.child_process import run_child
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        child = "import os, signal; os.kill(os.getppid(), signal.SIGHUP); raise SystemExit(4)"
        sys.exit(run_child([sys.executable, "-c", child]))
    """)
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 4
