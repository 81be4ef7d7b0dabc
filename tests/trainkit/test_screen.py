"""Output of a command: no notes of TensorFlow, bars as lines in a pipe, warnings as such."""

import io
import logging
import subprocess
import sys
from pathlib import Path

import tpudet
from tpudet.trainkit.screen import BarLines, LogFormatter, LogHandler

NOTE = "I0000 00:00:1795907011.285164   13918 port.cc:153] oneDNN custom operations are on.\\n"


def run(code: str) -> subprocess.CompletedProcess[str]:
    """Runs code in a process of its own, after `hide_notes`."""
    start = "import os, sys\nfrom tpudet.trainkit.screen import hide_notes, prepare_screen\n"
    command = [sys.executable, "-c", start + code]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_notes_are_left_out_and_all_else_is_shown_even_after_a_crash() -> None:
    done = run(
        "hide_notes()\n"
        f"os.write(2, b'{NOTE}E0000 00:00:1.5 1 cuda.cc:9] out of memory\\n')\n"
        "print('from Python', file=sys.stderr)\n"
        "os.write(2, b'F0000 00:00:1.5 1 check.cc:7] Check failed\\n')\n"
        "os.abort()\n"
    )
    assert done.returncode == -6
    assert sorted(done.stderr.splitlines()) == [
        "E0000 00:00:1.5 1 cuda.cc:9] out of memory",
        "F0000 00:00:1.5 1 check.cc:7] Check failed",
        "from Python",
    ]


def test_notes_are_hidden_from_the_import_on_unless_they_are_wanted(tmp_path) -> None:
    (tmp_path / "tensorflow.py").write_text(f"import os\nos.write(2, b'{NOTE}')\n")
    code = f"sys.path.insert(0, {str(tmp_path)!r})\nprepare_screen()\nimport tensorflow\n"
    assert run(code).stderr == ""
    shown = run(f"os.environ['TF_CPP_MIN_LOG_LEVEL'] = '0'\n{code}").stderr
    assert "oneDNN custom operations" in shown


def test_bars_and_messages_have_lines_of_their_own_in_a_pipe() -> None:
    done = run(
        "prepare_screen()\n"
        "from tqdm import tqdm\n"
        "for k in tqdm(range(3), desc='reading'):\n"
        "    if k == 1: print('a message', file=sys.stderr)\n"
        "print('the end', file=sys.stderr)\n"
    )
    lines = done.stderr.splitlines()
    assert [line.split(":")[0] for line in lines] == ["reading", "a message", "reading", "the end"]
    assert "\r" not in done.stderr
    assert " 3/3 " in lines[2]


def test_no_bar_has_an_interval_of_its_own() -> None:
    """It would win over that of pipes, and a log would have a line each half second."""
    (folder,) = tpudet.__path__
    sources = {path.name: path.read_text() for path in Path(folder).rglob("*.py")}
    assert [
        name for name, text in sources.items() if "tqdm" in text and "mininterval=" in text
    ] == []


def test_on_a_terminal_a_message_clears_the_bar_and_the_bar_comes_back(tmp_path) -> None:
    code = (
        "from tpudet.trainkit.screen import prepare_screen\n"
        "prepare_screen()\n"
        "import logging\n"
        "from tqdm import tqdm\n"
        "from tpudet.trainkit.command_line import start_logging\n"
        "start_logging()\n"
        "for k in tqdm(range(3), desc='reading', ncols=60, nrows=9):\n"
        "    if k == 1: logging.warning('a message')\n"
    )
    # The terminal has no size, so the bar is given one. It is a process of its own: one with the
    # threads of this one must not fork.
    spawn = f"import pty, sys; sys.exit(pty.spawn([sys.executable, '-c', {code!r}]))"
    done = subprocess.run(
        [sys.executable, "-c", spawn],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
        check=True,
    )
    before, message, after = done.stdout.decode().partition("WARNING: a message")
    assert message
    # The line of the message: the cleared bar, and only then time and text.
    line = before.rpartition("\r")[2]
    assert "reading" in before
    assert "reading" not in line
    assert "\033[33m" in line
    assert "reading" in after


def test_a_bar_that_is_cleared_leaves_no_line() -> None:
    buffer = io.BytesIO()
    stream = BarLines(buffer)
    for text in ("\r 50%|##  |", "\r          ", "\r", "next\n"):
        stream.write(text)
    stream.flush()
    assert buffer.getvalue() == b"50%|##  |\nnext\n"


def test_of_tensorflow_s_python_code_errors_alone_are_logged(monkeypatch, capsys) -> None:
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "2")
    handlers = [LogHandler()]
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "0")
    handlers.append(LogHandler())
    for handler in handlers:
        for name in ("absl", "tensorflow", "tpudet.x"):
            for level in (logging.WARNING, logging.ERROR):
                handler.handle(logging.LogRecord(name, level, "", 0, name, None, None))
        print("--")
    hidden, shown, _ = capsys.readouterr().out.split("--\n")
    assert [line.split(" ", 2)[2] for line in hidden.splitlines()] == [
        *("ERROR: absl", "ERROR: tensorflow", "WARNING: tpudet.x", "ERROR: tpudet.x")
    ]
    assert len(shown.splitlines()) == 6


def test_warnings_say_that_they_are() -> None:
    def line(level: int, formatter: LogFormatter) -> str:
        return formatter.format(logging.LogRecord("a", level, "a.py", 1, "%d left", (3,), None))

    plain = LogFormatter()
    assert line(logging.INFO, plain)[19:] == " 3 left"
    assert line(logging.WARNING, plain)[19:] == " WARNING: 3 left"
    assert line(logging.WARNING, LogFormatter(is_coloured=True)).startswith("\033[33m")
