"""A kill at any chosen change of a file, without ending the test's process."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

_folder_numbers = itertools.count()


class Killed(BaseException):
    """Stands for SIGKILL."""


class FileChanges:
    """Counts the changes of files; at the chosen one the process is dead, half-way through it.

    From then on every change raises, so that no `finally` can do what a dead process cannot.
    """

    Killed = Killed

    def __init__(self) -> None:
        self.count = 0
        self.killed_at: int | None = None

    def dies(self) -> bool:
        self.count += 1
        if self.killed_at is not None and self.count > self.killed_at:
            raise Killed
        return self.count == self.killed_at


@pytest.fixture
def file_changes(monkeypatch: pytest.MonkeyPatch) -> FileChanges:
    changes = FileChanges()
    remove, save = tf.io.gfile.remove, tf.raw_ops.SaveV2

    def killable(function: Callable[..., Any]) -> Callable[..., Any]:
        def changed(*arguments: Any, **keywords: Any) -> Any:
            if changes.dies():
                raise Killed
            return function(*arguments, **keywords)

        return changed

    def torn_save(*, prefix: str, **keywords: Any) -> Any:
        dies = changes.dies()
        save(prefix=prefix, **keywords)
        if dies:
            remove(prefix + ".index")
            raise Killed

    class TornFile(tf.io.gfile.GFile):
        def write(self, file_content: str) -> None:
            dies = changes.dies()
            super().write(file_content[: len(file_content) // 2] if dies else file_content)
            if dies:
                raise Killed

    for name in ("remove", "rename", "copy"):
        monkeypatch.setattr(tf.io.gfile, name, killable(getattr(tf.io.gfile, name)))
    monkeypatch.setattr(tf.io.gfile, "GFile", TornFile)
    monkeypatch.setattr(tf.raw_ops, "SaveV2", torn_save)
    return changes


@pytest.fixture
def ram_dir() -> str:
    """A fresh folder in memory."""
    path = f"ram://training-{next(_folder_numbers)}"
    tf.io.gfile.makedirs(path)
    return path
