"""Checkpoints: TensorFlow V2 tensor bundles keyed by variable path.

A checkpoint is the pair `model.ckpt-<step>.data-00000-of-00001` and `.index`. It is written under
a temporary name, read back and compared, then published: data first, `.index` last (a checkpoint
exists once its index does), then the `checkpoint` file that TensorFlow's own tools read. The
folder decides what there is to restore, not that file: it may be one save behind after a kill.

Tensors come and go as NumPy arrays, so that every engine reads what any other has written. Steps
come from the stored `global_step`. `tf.train.list_variables(prefix)` reads these files on disks and
in buckets; on `ram://` it takes prefixes for folders, so give it the folder there.
"""

import difflib
import logging
import os
import re
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from tpudet.trainkit.files import storage
from tpudet.trainkit.training.checkpoint_files import (
    NAME_PREFIX,
    remove_checkpoint,
    remove_leftovers,
    verify_checkpoint,
    write_checkpoint,
    write_pointer,
)
from tpudet.trainkit.training.checkpoint_match import (
    CheckpointMismatchError,
    check_match,
    first_names,
)
from tpudet.trainkit.training.engine import OPTIMIZER, Signature
from tpudet.trainkit.training.run_log import FILE_NAME as LEDGER_NAME
from tpudet.trainkit.weights.tensor_bundle import (
    GLOBAL_STEP,
    INDEX_SUFFIX,
    POINTER_NAME,
    UnreadableCheckpointError,
    open_bundle,
    read_bundle_tensor,
)

logger = logging.getLogger(__name__)


class Checkpoint(NamedTuple):
    """One published checkpoint."""

    step: int  # the stored global_step
    prefix: str  # path without `.index`


class Checkpoints:
    """The last `keep` checkpoints of one folder, written by one process.

    Args:
        directory: any folder or bucket.
        keep: how many of the newest stay, 1 or more.
        writes: whether this is the process that writes; others only read.
        verify: called before a checkpoint is published; raises if the folder is no longer claimed
            by this process.
    """

    def __init__(
        self,
        directory: str,
        *,
        keep: int,
        writes: bool = True,
        verify: Callable[[], None] = lambda: None,
    ) -> None:
        if keep < 1:
            raise ValueError(f"keep is {keep}; at least 1 checkpoint must be kept")
        self.directory = directory
        self._keep = keep
        self._writes = writes
        self._verify = verify
        self._published: list[Checkpoint] = []  # ascending
        self._unreadable: list[str] = []
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._under_way: Future[None] | None = None  # the save that may still be written

    @property
    def published(self) -> list[Checkpoint]:
        """The checkpoints that load_newest() and save() left in the folder, sorted by step.

        Waits for the save that is under way, and raises what it raised.
        """
        self.wait()
        return list(self._published)

    def prepare(self) -> None:
        """Creates the folder and removes the leftovers of a killed writer.

        Only the process that holds the claim on the folder does this: half-written files of
        another look the same.
        """
        if self._writes:
            storage.make_folder(self.directory)
            remove_leftovers(self.directory, LEDGER_NAME)

    def load_newest(self, signature: Signature) -> dict[str, np.ndarray] | None:
        """Reads the newest readable checkpoint; None if the folder holds no checkpoint.

        Unreadable ones are skipped with a warning; those that are still unreadable after the next
        save are removed then.

        Args:
            signature: the keys, shapes and dtypes that it must have.

        Raises:
            CheckpointMismatchError: keys, shapes or dtypes differ.
            UnreadableCheckpointError: there are checkpoints, and none can be read. Starting from
                nothing would silently throw the run away.
            UnavailableCheckpointError, PermissionError: whether one is whole cannot be known now.
        """
        _warn_of_bad_pointer(self.directory)
        readable, unreadable = _find_checkpoints(self.directory)
        while readable:
            try:
                arrays = load_checkpoint(readable[-1].prefix, signature)
            except UnreadableCheckpointError as error:
                unreadable[readable.pop().prefix] = str(error)
                continue
            _warn_of_unreadable(unreadable, f"falling back to {readable[-1].prefix}")
            self._published, self._unreadable = readable, list(unreadable)
            self._publish_pointer_and_prune()
            return arrays
        if unreadable:
            raise _none_readable(self.directory, unreadable)
        return None

    def save(self, arrays: Mapping[str, np.ndarray]) -> Checkpoint:
        """Begins to write, verify and publish the arrays, and returns before that is done.

        It waits for the save before, so that at most one is under way; what is too old is removed
        after the new one is published. A process that ends by itself waits for its last save.

        Args:
            arrays: by checkpoint key, which nobody changes any more; `global_step` must be among
                them.

        Raises:
            UnreadableCheckpointError: the save before reads back differently; earlier ones are
                untouched. `wait` raises it for this one.
        """
        self.wait()
        step = int(arrays[GLOBAL_STEP])
        checkpoint = Checkpoint(step, os.path.join(self.directory, f"{NAME_PREFIX}{step}"))
        if self._writes:
            self._under_way = self._writer.submit(self._write, checkpoint, arrays)
        else:
            self._add(checkpoint)
        return checkpoint

    def wait(self) -> None:
        """Waits until the last save is published, and raises what it raised."""
        under_way, self._under_way = self._under_way, None
        if under_way is not None:
            under_way.result()

    def _write(self, checkpoint: Checkpoint, arrays: Mapping[str, np.ndarray]) -> None:
        """Runs in the writer's thread; nothing else touches this object meanwhile."""
        write_checkpoint(checkpoint.prefix, arrays, verify=self._verify)
        self._add(checkpoint)
        logger.info("Saved %s", checkpoint.prefix)

    def _add(self, checkpoint: Checkpoint) -> None:
        others = [kept for kept in self._published if kept.prefix != checkpoint.prefix]
        self._published = sorted([*others, checkpoint])
        self._publish_pointer_and_prune()
        if self._writes:
            broken = [prefix for prefix in self._unreadable if prefix != checkpoint.prefix]
            self._unreadable = [prefix for prefix in broken if not _remove_if_torn(prefix)]

    def _publish_pointer_and_prune(self) -> None:
        """Drops names from the pointer before their files go, so that it never names a ghost."""
        outdated = self._published[: -self._keep]
        self._published = self._published[-self._keep :]
        if not self._writes:
            return
        write_pointer(self.directory, [os.path.basename(kept.prefix) for kept in self._published])
        for checkpoint in outdated:
            remove_checkpoint(checkpoint.prefix)


def check_newest(directory: str, signature: Signature) -> None:
    """Refuses what `load_newest` would refuse, without reading a tensor of the model.

    Args:
        directory: any folder or bucket; may not exist yet.
        signature: the keys, shapes and dtypes that the newest checkpoint must have.

    Raises:
        CheckpointMismatchError, UnreadableCheckpointError, OSError: as `Checkpoints.load_newest`.
    """
    readable, unreadable = _find_checkpoints(directory)
    if readable:
        prefix = readable[-1].prefix
        check_match(prefix, open_bundle(prefix), signature)
    elif unreadable:
        raise _none_readable(directory, unreadable)


def list_checkpoints(directory: str) -> list[Checkpoint]:
    """Returns the published checkpoints of a folder whose step can be read, sorted by step.

    This opens each index and reads two tensors, so that a file that was cut short does not count;
    others may still prove torn when they are read.

    Raises:
        UnavailableCheckpointError, PermissionError: whether one counts cannot be known now.
    """
    return _find_checkpoints(directory)[0]


def load_checkpoint(
    prefix: str, signature: Signature, *, trains: bool = True
) -> dict[str, np.ndarray]:
    """Reads one checkpoint that has exactly the keys, shapes and dtypes of `signature`.

    Args:
        prefix: path without `.index`.
        signature: of the engine that it is for.
        trains: whether that trains on. Else the state of the optimizer may be that of another one,
            such as one with loss scaling.

    Raises:
        UnreadableCheckpointError: torn, incomplete or gone.
        UnavailableCheckpointError, PermissionError: whether it is cannot be known now.
        CheckpointMismatchError: it holds other tensors.
    """
    reader = open_bundle(prefix)
    check_match(prefix, reader, signature, ignored=() if trains else (OPTIMIZER,))
    stored = reader.get_variable_to_shape_map()
    return {key: read_bundle_tensor(reader, prefix, key) for key in stored}


def read_checkpoint(path: str, keys: Iterable[str] | None = None) -> dict[str, np.ndarray]:
    """Reads tensors by key, for export and evaluation.

    Args:
        path: a prefix (`…/model.ckpt-500`), or a folder for its newest checkpoint.
        keys: which tensors; None for all.

    Raises:
        FileNotFoundError: a folder without checkpoints.
        UnreadableCheckpointError, UnavailableCheckpointError, PermissionError: as
            `load_checkpoint`.
        CheckpointMismatchError: it lacks one of `keys`; the message lists all that it lacks.
    """
    # On ram:// any path is a folder, so the index is looked for first.
    is_prefix = storage.exists(path + INDEX_SUFFIX) or not storage.is_folder(path)
    prefix = path if is_prefix else _newest_prefix(path)
    reader = open_bundle(prefix)
    stored = reader.get_variable_to_shape_map()
    wanted = sorted(stored) if keys is None else list(keys)
    missing = [key for key in wanted if key not in stored]
    if missing:
        close = [difflib.get_close_matches(key, stored, n=1) for key in missing]
        lines = [
            f"  {key}" + (f" (did you mean {match[0]}?)" if match else "")
            for key, match in zip(missing, close, strict=True)
        ]
        raise CheckpointMismatchError(
            f"{prefix} lacks {len(missing)} of the {len(wanted)} requested tensors:\n"
            + "\n".join(first_names(lines))
        )
    return {key: read_bundle_tensor(reader, prefix, key) for key in wanted}


def _find_checkpoints(directory: str) -> tuple[list[Checkpoint], dict[str, str]]:
    """Readable checkpoints, sorted by step, and prefix -> reason of the others."""
    readable, unreadable = [], {}
    for name in storage.list_names(directory):
        if not re.fullmatch(re.escape(NAME_PREFIX) + r"\d+" + re.escape(INDEX_SUFFIX), name):
            continue
        prefix = os.path.join(directory, name.removesuffix(INDEX_SUFFIX))
        try:
            reader = open_bundle(prefix)
            step = int(read_bundle_tensor(reader, prefix, GLOBAL_STEP))
            # The last in the data file, which one that was cut short lacks.
            read_bundle_tensor(reader, prefix, max(reader.get_variable_to_shape_map()))
            readable.append(Checkpoint(step, prefix))
        except UnreadableCheckpointError as error:
            unreadable[prefix] = str(error)
    return sorted(readable), unreadable


def _newest_prefix(directory: str) -> str:
    readable, unreadable = _find_checkpoints(directory)
    if not readable:
        reasons = "".join(f"\n  {reason}" for reason in unreadable.values())
        raise FileNotFoundError(f"{directory} holds no readable checkpoint{reasons}")
    _warn_of_unreadable(unreadable, f"using {readable[-1].prefix}")
    return readable[-1].prefix


def _none_readable(directory: str, unreadable: Mapping[str, str]) -> UnreadableCheckpointError:
    return UnreadableCheckpointError(
        "No checkpoint can be read:\n  "
        + "\n  ".join(unreadable.values())
        + f"\nRestore a copy (see also {directory}/best), or remove these files to start from "
        "step 0."
    )


def _remove_if_torn(prefix: str) -> bool:
    """Reads a checkpoint that was unreadable once more, and removes it if it is still.

    Returns:
        Whether that is known now.
    """
    try:
        verify_checkpoint(prefix)
    except UnreadableCheckpointError:
        logger.warning("Removing the unreadable checkpoint %s", prefix)
        remove_checkpoint(prefix)
    except OSError as error:
        logger.warning("Not removed before it is known to be torn: %s", error)
        return False
    else:
        logger.warning("%s, which was unreadable before, is whole and stays", prefix)
    return True


def _warn_of_unreadable(unreadable: Mapping[str, str], consequence: str) -> None:
    for reason in unreadable.values():
        logger.warning("Unreadable checkpoint, %s: %s", consequence, reason)


def _warn_of_bad_pointer(directory: str) -> None:
    path = os.path.join(directory, POINTER_NAME)
    text = storage.read_text(path)
    if text is not None and not re.search(r'^model_checkpoint_path: "[^"\n]+"$', text, re.M):
        logger.warning("%s is empty or torn; using the newest checkpoint in the folder", path)
