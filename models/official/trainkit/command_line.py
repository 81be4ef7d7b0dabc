"""Runs commands: errors as messages, exit codes, logs, and arguments that several share."""

import argparse
import contextlib
import io
import logging
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from tpudet.trainkit.cpu import available_cores
from tpudet.trainkit.errors import UserError, shorten
from tpudet.trainkit.files import storage
from tpudet.trainkit.files.file_kinds import FileKind, refuse_other_kind
from tpudet.trainkit.files.locations import refuse_miswritten, refuse_miswritten_roots
from tpudet.trainkit.screen import LogFormatter, LogHandler, StandardOutput

EXIT_WRONG_USAGE = 2
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells report it
_MAX_LINES, _LONGEST_LINE = 100, 1000  # of an error message

_CONFIG_HELP = (
    "experiment file, or a VERSION: the name of a file under configs/yaml without .yaml, its part "
    "before the first `_`, or a version of the predecessor"
)


_command_started: float | None = None


def command_start() -> float | None:
    """When the newest command of this process began, in seconds since 1970; None without one."""
    return _command_started


def run_command(
    parser: argparse.ArgumentParser,
    argv: Sequence[str] | None,
    body: Callable[[argparse.Namespace], int | str | None],
) -> int:
    """Parses the arguments and runs a command; what a user can put right becomes one message.

    Args:
        parser: of the command; its `prog` begins the message.
        argv: the arguments; None means those of the process.
        body: returns the exit code, or a summary to print; None and a summary mean 0.

    Returns:
        The exit code: 2 for wrong usage or wrong input, 130 after Ctrl-C, else what `body` returns.
    """
    global _command_started
    _command_started = time.time()
    _open_closed_streams()
    _print_any_text()
    words = sys.argv[1:] if argv is None else list(argv)
    if {"-h", "--help"} & set(words):
        parser.parse_args(["--help"])  # intermixed parsing hides the positionals' defaults from it
    arguments = parser.parse_intermixed_args(words)  # options may stand between the positionals
    code = 0
    try:
        refuse_miswritten_roots()
        refuse_miswritten(_texts(arguments))
        result = body(arguments)
        if isinstance(result, str):
            print(result)
        code = result if isinstance(result, int) else 0
        sys.stdout.flush()
    except (UserError, OSError) as error:
        _say(f"{parser.prog}: {_shorten_message(_in_words(error))}")
        code = code or EXIT_WRONG_USAGE  # the output may be a terminal that closed
    except KeyboardInterrupt:
        _say(f"\n{parser.prog}: interrupted; finished files are kept")
        code = EXIT_INTERRUPTED
    try:
        sys.stdout.flush()
    except OSError:  # a full disk, say, of which the error has been told
        _discard_output()
    return code


def _texts(arguments: argparse.Namespace) -> Iterator[str]:
    """Every string among the arguments; of --set the values, where a sole `~` is null in YAML."""
    for name, value in vars(arguments).items():
        values = value if isinstance(value, list | tuple) else [value]
        texts = [text for text in values if isinstance(text, str)]
        if name == "overrides":
            texts = [found for text in texts if (found := text.partition("=")[2].strip()) != "~"]
        yield from texts


def _in_words(error: UserError | OSError) -> str:
    """The message of an error; one of the system begins with its file, without Python's number."""
    if isinstance(error, UserError) or error.filename is None or error.strerror is None:
        return str(error)
    problem = " cannot be written" if error.errno in storage.NO_ROOM else ""
    return f"{error.filename}{problem}: {error.strerror}"


def _say(message: str) -> None:
    with contextlib.suppress(OSError):  # nobody hears it, and the exit code still tells
        print(message, file=sys.stderr, flush=True)


def _discard_output() -> None:
    """Sends to nowhere what Python flushes once more at exit; it would end with code 120."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _shorten_message(message: str) -> str:
    """Leaves out the end of a long list of mistakes, and of what a damaged file has for a word."""
    lines = [shorten(line, _LONGEST_LINE) for line in message.split("\n")]
    more = len(lines) - _MAX_LINES
    return "\n".join(lines[:_MAX_LINES] + [f"... and {more:,} more lines"] * (more > 0))


def _open_closed_streams() -> None:
    """Sends what a closed standard stream would get to nowhere.

    Otherwise the next file that is opened takes its number, and messages are written into it.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            mode = "r" if number == 0 else "w"
            # The lowest free number is that of this stream.
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115


def _print_any_text() -> None:
    """Lets standard output show with backslashes what its encoding has not, of file names, say.

    One that is the process's own no longer needs a reader.
    """
    if not isinstance(sys.stdout, io.TextIOWrapper):
        return
    sys.stdout.reconfigure(errors="backslashreplace")
    if sys.stdout is sys.__stdout__:
        sys.stdout = StandardOutput.in_place_of(sys.stdout)


def new_parser(prog: str, description: str | None, **settings: Any) -> argparse.ArgumentParser:
    """A parser whose description and epilog keep their line breaks."""
    return argparse.ArgumentParser(
        prog=prog,
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        **settings,
    )


def add_config_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds CONFIG, which --config may give as well, --set and --params_override.

    `config` is None if neither gives one.
    """
    # Without SUPPRESS a CONFIG that is not there would overwrite what --config has set.
    parser.add_argument(
        "config",
        nargs="?",
        action=_OneConfig,
        default=argparse.SUPPRESS,
        metavar="CONFIG",
        help=_CONFIG_HELP,
    )
    parser.add_argument(
        "--config", action=_OneConfig, metavar="CONFIG", help="another way to give CONFIG"
    )
    add_override_arguments(parser)


class _OneConfig(argparse.Action):
    """Keeps the experiment that the arguments name, and refuses a second one."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        before = getattr(namespace, self.dest, None)
        if before not in (None, values):
            parser.error(f"one CONFIG is needed, not {before} and {values}")
        setattr(namespace, self.dest, values)


def add_override_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds --set and --params_override."""
    add_set_argument(
        parser, "set one value, e.g. train.total_steps=500; may be repeated and wins over all else"
    )
    parser.add_argument(
        "--params_override",
        metavar="YAML|FILE",
        default="",
        help="set several values: a YAML mapping or a file with one",
    )


def add_set_argument(parser: argparse.ArgumentParser, help: str) -> None:
    """Adds --set, whose values come as the list `overrides`."""
    parser.add_argument(
        "--set", metavar="KEY=VALUE", action="append", default=[], dest="overrides", help=help
    )


def add_json_argument(parser: argparse.ArgumentParser, content: str, kind: FileKind) -> None:
    """Adds --json, the file of a report; one that cannot be written is refused before the work."""
    parser.add_argument(
        "--json",
        type=partial(report_file, kind=kind),
        default="",
        metavar="FILE",
        help=f"also write {content} to FILE",
    )


def add_threads_argument(parser: argparse.ArgumentParser) -> None:
    """Adds --threads, by default one for each core that this process may use."""
    parser.add_argument(
        "--threads",
        type=positive_integer,
        default=available_cores(),
        metavar="N",
        help="default: the available cores (%(default)s); the result does not depend on it",
    )


def add_workers_argument(parser: argparse.ArgumentParser) -> None:
    """Adds --workers."""
    parser.add_argument(
        "--workers",
        type=positive_integer,
        default=os.cpu_count() or 1,
        metavar="N",
        help="processes (default: one per CPU)",
    )


def positive_integer(text: str) -> int:
    """An integer of at least 1, as the `type` of an argument."""
    if not text.strip().isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"`{text}` is not an integer of at least 1")
    return int(text)


def positive_number(text: str) -> float:
    """A number above 0, as the `type` of an argument."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"`{text}` is not a number above 0")
    return value


def natural_number(text: str) -> int:
    """An integer of at least 0, as the `type` of an argument."""
    if not text.strip().isdecimal():
        raise argparse.ArgumentTypeError(f"`{text}` is not an integer of at least 0")
    return int(text)


def seed(text: str) -> int:
    """A seed that every generator of random numbers takes, as the `type` of an argument."""
    if not text.strip().isdecimal() or int(text) >= 2**32:
        raise argparse.ArgumentTypeError(f"`{text}` is not an integer from 0 to 2**32 - 1")
    return int(text)


def share(text: str) -> float:
    """A number from 0 to 1, as the `type` of an argument."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 <= value <= 1.0:
        raise argparse.ArgumentTypeError(f"`{text}` is not a number from 0 to 1")
    return value


def report_file(text: str, *, kind: FileKind) -> str:
    """The path of a file to write, as the `type` of an argument.

    Its folder exists, and it replaces no file of another kind.
    """
    folder = os.path.dirname(text) or "."
    if storage.is_folder(text):
        raise argparse.ArgumentTypeError(f"{text} is a folder, not a file")
    if not storage.is_remote(text) and not storage.is_folder(folder):
        raise argparse.ArgumentTypeError(f"{text} cannot be written: there is no folder {folder}")
    try:
        refuse_other_kind(text, kind)
    except UserError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def start_logging(log_file: str = "") -> None:
    """Sends the log to standard output, and appends it to a local file if one is named."""
    handlers: list[logging.Handler] = [LogHandler()]
    if log_file:
        os.makedirs(os.path.dirname(log_file) or ".", exist_ok=True)
        handlers.append(logging.FileHandler(log_file))
        handlers[-1].setFormatter(LogFormatter())
    logging.basicConfig(level=logging.INFO, handlers=handlers, force=True)
