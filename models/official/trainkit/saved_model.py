"""SavedModels with a class list: written under their name only when whole, and checked when read.

`assets/classes.csv` is the class list, `assets/metadata.json` holds facts about the model, and
`assets/files.json` lists its files.
"""

import functools
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tpudet.trainkit.class_list import read_class_list
from tpudet.trainkit.errors import listing
from tpudet.trainkit.files import storage
from tpudet.trainkit.files.claimed_folder import claimed_folder
from tpudet.trainkit.files.json_text import parse_json
from tpudet.trainkit.files.remote import write_errors
from tpudet.trainkit.saved_model_files import (
    SavedModelError,
    check_files,
    find_other,
    write_file_list,
)
from tpudet.trainkit.saved_model_ops import RefusedGraphError, check_graph
from tpudet.trainkit.source_version import git_commit
from tpudet.trainkit.weights.bundle_index import check_index

if TYPE_CHECKING:
    import keras

SAVED_MODEL_FILE = "saved_model.pb"
_METADATA = "assets/metadata.json"


class SavedModel(NamedTuple):
    """A SavedModel that `publish_saved_model` wrote."""

    directory: str
    class_list_text: str
    metadata: dict  # contents of metadata.json
    fingerprint: str  # of weights, graph, classes and metadata


def saved_model_path(export_root: str, model_dir: str, size: tuple[int, int]) -> str:
    """Returns `<export_root>/<name of model_dir>-<resolution>`, such as `final/flowers-224`.

    Args:
        export_root: folder for SavedModels.
        model_dir: of the run.
        size: height and width of the images that the model sees.
    """
    resolution = "x".join(str(side) for side in dict.fromkeys(size))
    return f"{export_root.rstrip('/')}/{os.path.basename(model_dir.rstrip('/'))}-{resolution}"


def require_free(directory: str, *, overwrite: bool) -> None:
    """Raises FileExistsError if a SavedModel cannot be written to `directory`."""
    is_model = storage.exists(os.path.join(directory, SAVED_MODEL_FILE))
    if is_model and not overwrite:
        raise FileExistsError(f"{directory} exists: give another directory or allow overwriting")
    if not is_model and (other := find_other(directory)):
        raise FileExistsError(
            f"{directory} exists and is not a SavedModel, so it is not replaced: give another "
            f"directory, or move it away. {other}"
        )


def run_metadata(model_dir: str, step: int) -> dict[str, object]:
    """Returns the metadata of a SavedModel that say which run, step and sources it comes from.

    Args:
        model_dir: of the run; its full path tells runs of one name apart.
        step: of the checkpoint.
    """
    model_dir = model_dir.rstrip("/")
    return {
        "version": os.path.basename(model_dir),
        "model_dir": _full_path(model_dir),
        "step": step,
        "git_commit": git_commit(),
    }


def _full_path(model_dir: str) -> str:
    return model_dir.rstrip("/") if storage.is_remote(model_dir) else os.path.abspath(model_dir)


def require_same_run(directory: str, model_dir: str) -> None:
    """Refuses to replace anything but an earlier SavedModel of the same run.

    Args:
        directory: to write.
        model_dir: of the run.

    Raises:
        FileExistsError: a SavedModel of another run is there, or something else.
    """
    require_free(directory, overwrite=True)
    if not storage.exists(os.path.join(directory, SAVED_MODEL_FILE)):
        return
    try:
        text = storage.read_text(os.path.join(directory, _METADATA))
        found = parse_json(text or "{}").get("model_dir")
    except (ValueError, AttributeError):
        found = None
    if found != _full_path(model_dir):
        raise FileExistsError(
            f"{directory} is a SavedModel of {f'the run {found}' if found else 'an unnamed run'}, "
            f"not of {_full_path(model_dir)}: give another --export folder, or replace it by "
            "tpudet export --overwrite"
        )


def publish_saved_model(
    model: "keras.Model",
    signatures: Mapping[str, Callable[..., Any]],
    *,
    directory: str,
    class_list_text: str,
    metadata: Mapping[str, object],
    facts: Callable[[], Mapping[str, object]],
    overwrite: bool,
) -> None:
    """Writes a SavedModel. The directory gets its name when it is whole.

    Where it is a link, the folder that it points to is replaced.

    Args:
        model: owns every variable that the signatures read, with the values to save.
        signatures: tf.functions by name. Nothing else is saved of what they belong to: a tf.Module
            with them would save, and whoever loads it would read, each of them twice.
        directory: to write.
        class_list_text: contents of classes.csv.
        metadata: JSON values of the caller: version, step, git commit.
        facts: returns JSON values about the model, beside `classes_sha256`; called once all
            signatures are traced, since to trace one before would be to trace it twice.
        overwrite: replace an existing SavedModel.

    Raises:
        FileExistsError: `directory` exists and `overwrite` is false, or it is not a SavedModel.
        ClaimError: another process exports to `directory`.
        ValueError: `metadata` names one of the facts.
        OSError: it cannot be written.
    """
    import tensorflow as tf  # late: those who only look for SavedModels do without

    check = functools.partial(require_free, directory, overwrite=overwrite)
    with claimed_folder(directory, last=SAVED_MODEL_FILE, check=check) as temporary:
        with tempfile.TemporaryDirectory() as folder:
            module = tf.Module()
            # Only the TensorFlow variables: the Keras objects would bring their classes along.
            module.model_variables = [variable.value for variable in model.variables]
            module.assets = [
                _asset(os.path.join(folder, "classes.csv"), class_list_text),
                _asset(os.path.join(folder, "metadata.json"), "{}\n"),  # written below
            ]
            with write_errors(directory):
                tf.saved_model.save(module, temporary, signatures=dict(signatures))
        contents = _metadata_json(metadata, facts(), class_list_text)
        storage.write_text(os.path.join(temporary, "assets", "metadata.json"), contents)
        write_file_list(temporary)


def _metadata_json(
    given: Mapping[str, object], facts: Mapping[str, object], class_list_text: str
) -> str:
    digest = hashlib.sha256(class_list_text.encode()).hexdigest()
    facts = {**facts, "classes_sha256": digest}
    if facts.keys() & given.keys():
        raise ValueError(f"metadata sets {sorted(facts.keys() & given.keys())}: export does so")
    return json.dumps({**given, **facts}, indent=2) + "\n"


def _asset(path: str, text: str) -> Any:
    import tensorflow as tf

    with storage.open_file(path, "w") as file:
        file.write(text)
    return tf.saved_model.Asset(path)


def find_saved_model(saved_model: str) -> str:
    """Returns the directory of the newest SavedModel at or below `saved_model`.

    Raises:
        SavedModelError: no such directory, or no SavedModel in it; lists what is there.
    """
    if not storage.is_folder(saved_model):
        raise SavedModelError(
            f"no directory {saved_model}: name a SavedModel or a folder that holds some"
        )
    found = [
        folder
        for folder, _, names in storage.walk(saved_model)
        if SAVED_MODEL_FILE in names and not os.path.basename(folder.rstrip("/")).startswith(".")
    ]
    if not found:
        there = ", ".join(storage.list_folder(saved_model)[:20]) or "nothing"
        raise SavedModelError(
            f"no SavedModel (saved_model.pb) in {saved_model} or below; there is: {there}. "
            "tpudet export writes one"
        )
    age = {f: storage.stat(os.path.join(f, SAVED_MODEL_FILE)).modified_ns for f in found}
    return max(sorted(found), key=lambda folder: age[folder])


def read_saved_model(directory: str, *, facts: Sequence[str]) -> SavedModel:
    """Reads the assets of a SavedModel; the graph itself is not loaded.

    Args:
        directory: of the SavedModel.
        facts: names that its metadata must have.

    Raises:
        SavedModelError: the assets that `publish_saved_model` writes are missing or not usable, or
            a file is cut off or of another export.
    """
    contents: dict[str, bytes] = {}
    for name in ("assets/classes.csv", _METADATA, SAVED_MODEL_FILE):
        path = os.path.join(directory, name)
        if not storage.exists(path):
            raise SavedModelError(
                f"{directory} has no {name}: without it the meaning of its class ids is unknown. "
                "Export it again with tpudet export"
            )
        contents[name] = _read(path)
    # The index of the variables holds a checksum of each, so the weights need not be read.
    try:
        contents["variables"] = _read(os.path.join(directory, "variables", "variables.index"))
    except FileNotFoundError as error:
        raise SavedModelError(
            f"{directory} has no variables/variables.index: copy it again, or export it again with "
            "tpudet export"
        ) from error
    try:
        classes = contents["assets/classes.csv"].decode()
        read_class_list(classes)
        metadata = parse_json(contents[_METADATA])
        missing = {*facts, "classes_sha256"} - metadata.keys()
    except (ValueError, AttributeError) as error:
        raise SavedModelError(f"{directory}: {error}") from error
    if missing:
        raise SavedModelError(
            f"{directory}/{_METADATA} lacks {listing(sorted(missing))}: it is of another task or "
            "of an earlier version. Export it again with tpudet export"
        )
    if hashlib.sha256(classes.encode()).hexdigest() != metadata["classes_sha256"]:
        raise SavedModelError(
            f"{directory}/assets/classes.csv is not the list that the model was exported with: its "
            "class ids would get wrong names. Restore that list or export again"
        )
    check_files(directory)
    digest = hashlib.sha256(b"".join(hashlib.sha256(c).digest() for c in contents.values()))
    return SavedModel(directory, classes, metadata, digest.hexdigest())


def load_saved_model(saved: SavedModel) -> Any:
    """Loads the graph and the weights, if the graph only computes.

    Raises:
        SavedModelError: it is damaged, or has ops that touch files, processes or the network.
    """
    import tensorflow as tf

    variables = os.path.join(saved.directory, "variables", "variables")
    try:
        check_graph(_read(os.path.join(saved.directory, SAVED_MODEL_FILE)))
        check_index(variables, f"{variables}.index")
        return tf.saved_model.load(saved.directory)
    except RefusedGraphError as error:
        raise SavedModelError(
            f"{saved.directory} is refused, because it may touch files, processes or the network: "
            f"it has {error}. No export of tpudet does so: do not load it elsewhere either"
        ) from error
    except (OSError, ValueError, tf.errors.OpError) as error:
        raise SavedModelError(
            f"{saved.directory} cannot be loaded: {error}. Copy it again, or export it again with "
            "tpudet export"
        ) from error


def _read(path: str) -> bytes:
    with storage.open_file(path, "rb") as file:
        return file.read()
