"""Files that belong together: none is ever beside one of another run of their step."""

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from tpudet.trainkit.files.storage import is_remote, remove_if_there, whole_file


@contextmanager
def whole_files(paths: Sequence[str]) -> Iterator[list[Any]]:
    """Opens files of bytes as `storage.whole_file` does; all get their names when the block ends.

    Those that have the names are removed before the first new one gets its own. A run killed
    in between leaves some of its files and none of an earlier run, whose folds may divide the
    images differently.

    Args:
        paths: the final names.

    Raises:
        OSError: a file cannot be written. Until all are, those that have the names stay.
    """
    with ExitStack() as stack:
        files = [stack.enter_context(whole_file(path, "wb")) for path in paths]
        yield files
        for file in files:
            file.flush()  # a full disk is noticed before anything is removed
        for path in paths:
            remove_if_there(path if is_remote(path) else os.path.realpath(path))
