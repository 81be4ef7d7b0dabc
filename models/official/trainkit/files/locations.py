"""Default locations: inputs under $DATA, everything that the toolkit writes under $STORAGE."""

import os
import re
from collections.abc import Iterable

from tpudet.trainkit.errors import UserError

_ONE_SLASH = re.compile(r"(gs|s3|hdfs|ram):/(?!/)")


def refuse_miswritten(paths: Iterable[str]) -> None:
    """Refuses paths that would be taken for local folders named `gs:` or `~`.

    Args:
        paths: of a command, beside texts of any other kind.

    Raises:
        UserError: names the first such path and how to write it.
    """
    for path in paths:
        scheme = _ONE_SLASH.match(path)
        if scheme:
            right = f"{scheme[1]}://{path[scheme.end() :]}"
            raise UserError(f"{path} has one slash after `{scheme[1]}:`; write {right}")
        if path == "~" or path.startswith("~/"):
            raise UserError(
                f"{path}: the shell replaces `~` only at the start of a word, as in "
                f"`--output ~/x`, and not after the `=` of an option; write $HOME{path[1:]}"
            )


def refuse_miswritten_roots() -> None:
    """Refuses values of $DATA and $STORAGE as `refuse_miswritten` does."""
    for variable in ("DATA", "STORAGE"):
        try:
            refuse_miswritten([os.environ.get(variable, "")])
        except UserError as error:
            raise UserError(f"${variable}: {error}") from error


def data_path(*names: str) -> str:
    """A path under $DATA, a local folder or gs://bucket; by default `data`."""
    return _under("DATA", "data", names)


def storage_path(*names: str) -> str:
    """A path under $STORAGE, a local folder or gs://bucket; by default `output`."""
    return _under("STORAGE", "output", names)


def _under(variable: str, default: str, names: tuple[str, ...]) -> str:
    root = os.environ.get(variable) or default
    return os.path.join(root.rstrip("/") or "/", *names)
