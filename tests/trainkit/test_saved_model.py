"""SavedModels are published under their claim only, and never over one finished meanwhile."""

import errno
import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf
from tensorflow.core.framework.function_pb2 import FunctionDef
from tensorflow.core.protobuf.saved_model_pb2 import SavedModel as SavedModelProto

from tpudet.trainkit.files import storage
from tpudet.trainkit.files.claims import ClaimError
from tpudet.trainkit.saved_model import (
    SAVED_MODEL_FILE,
    SavedModelError,
    load_saved_model,
    publish_saved_model,
    read_saved_model,
    require_free,
    require_same_run,
    run_metadata,
)


@pytest.fixture
def publish(tmp_path: Path) -> Callable[..., None]:
    """Publishes a model that adds one, of a named version."""
    return partial(publish_model, str(tmp_path / "model"))


def publish_model(directory: str, version: str, *, overwrite: bool = False) -> None:
    add = tf.function(lambda x: x + 1, input_signature=[tf.TensorSpec([], tf.float32)])
    publish_saved_model(
        keras.Sequential(),
        {"serving_default": add},
        directory=directory,
        class_list_text="/m/01,cat\n",
        metadata={"version": version},
        facts=dict,
        overwrite=overwrite,
    )


def test_a_model_is_replaced_by_its_own_run_only(
    publish: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its run is told by the full path, however that is written; one of before names none."""
    directory = str(tmp_path / "model")
    require_same_run(directory, "a/fold_0")
    publish("first")
    with pytest.raises(FileExistsError, match="is a SavedModel of an unnamed run, not of /"):
        require_same_run(directory, "a/fold_0")
    monkeypatch.chdir(tmp_path)
    metadata = json.dumps(run_metadata("a/fold_0", 4))
    Path(directory, "assets/metadata.json").write_text(metadata)
    for same in ("a/fold_0/", "./a/fold_0", f"{tmp_path}/a/fold_0"):
        require_same_run(directory, same)
    with pytest.raises(FileExistsError, match=r"of the run .*/a/fold_0, not of .*/b/fold_0: "):
        require_same_run(directory, "b/fold_0")


@pytest.mark.parametrize(
    "name", ["metrics.jsonl", "model.ckpt-8.index", "assets/logo.png", "variables/notes.txt"]
)
def test_in_a_bucket_too_only_a_model_is_replaced(name: str) -> None:
    """The run `r50-640` lies where the run `r50` is exported at 640."""
    directory = f"ram://others/{name.replace('/', '-')}/r50-640"
    storage.make_folder(os.path.dirname(f"{directory}/{name}"))
    storage.write_text(f"{directory}/{name}", "precious")
    storage.make_folder(f"{directory}/assets")
    storage.write_text(f"{directory}/assets/classes.csv", "")
    for refuse in (
        lambda: require_free(directory, overwrite=False),
        lambda: require_free(directory, overwrite=True),
        lambda: require_same_run(directory, "ram://others/r50"),
    ):
        with pytest.raises(FileExistsError, match=f"is not a SavedModel.* It holds {name}$"):
            refuse()
    with pytest.raises(FileExistsError, match="is not a SavedModel"):
        publish_model(directory, "first")
    assert storage.read_text(f"{directory}/{name}") == "precious"


def test_in_a_bucket_a_broken_publication_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the moves one after another fails; whatever is there then, the next attempt succeeds."""
    real, directory = storage.rename, "ram://broken-off/model"

    def rename_some(limit: int) -> Callable[[str, str], None]:
        left = [limit]

        def rename(source: str, target: str) -> None:
            left[0] -= target.startswith(f"{directory}/")
            if left[0] < 0:
                raise OSError("503: backend error")
            real(source, target)

        return rename

    for limit in range(7):
        with monkeypatch.context() as patch:
            patch.setattr(storage, "rename", rename_some(limit))
            with pytest.raises(OSError, match="503"):
                publish_model(directory, "first", overwrite=True)
        require_free(directory, overwrite=False)
    publish_model(directory, "second")
    assert read_saved_model(directory, facts=()).metadata["version"] == "second"


def test_a_model_whose_claim_was_lost_is_not_published(
    publish: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = tf.saved_model.save

    def save_while_another_takes_over(*arguments: Any, **options: Any) -> None:
        real(*arguments, **options)
        (tmp_path / ".model.claim.json").unlink()

    with monkeypatch.context() as patch:
        patch.setattr(tf.saved_model, "save", save_while_another_takes_over)
        with pytest.raises(ClaimError, match="is no longer claimed"):
            publish("first")
    assert not (tmp_path / "model").exists()
    publish("second")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_save_that_fails_leaves_nothing_and_keeps_the_model_of_before(
    publish: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish("first")
    real = tf.saved_model.save

    def save_on_a_full_disk(*arguments: Any, **options: Any) -> None:
        real(*arguments, **options)
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(tf.saved_model, "save", save_on_a_full_disk)
        with pytest.raises(OSError, match="No space left"):
            publish("second", overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    read = read_saved_model(str(tmp_path / "model"), facts=())
    assert read.metadata["version"] == "first"


def damage_encoding(folder: Path) -> None:
    (folder / "assets/classes.csv").write_bytes("/m/01,Bär\n".encode("latin-1"))


def damage_sizes(folder: Path) -> None:
    path = folder / "assets/files.json"
    files = json.loads(path.read_text())
    files[SAVED_MODEL_FILE]["size"] = None
    path.write_text(json.dumps(files))


@pytest.mark.parametrize(
    ("damage", "message"),
    [(damage_encoding, "codec can't decode byte"), (damage_sizes, "damaged: a file has no size")],
)
def test_an_edited_model_is_refused_in_words(
    publish: Callable[..., None], tmp_path: Path, damage: Callable[[Path], None], message: str
) -> None:
    publish("first")
    damage(tmp_path / "model")
    with pytest.raises(SavedModelError, match=message):
        read_saved_model(str(tmp_path / "model"), facts=())


def test_a_model_that_was_finished_meanwhile_is_kept(
    publish: Callable[..., None], tmp_path: Path
) -> None:
    """The caller has looked for it before it built the model; here it is looked for once more."""
    publish("first")
    with pytest.raises(FileExistsError, match="model exists: give another directory"):
        publish("second")
    assert '"first"' in (tmp_path / "model/assets/metadata.json").read_text()
    publish("second", overwrite=True)
    assert '"second"' in (tmp_path / "model/assets/metadata.json").read_text()
    assert (tmp_path / "model" / SAVED_MODEL_FILE).exists()


def without_objects(contents: SavedModelProto) -> None:
    contents.meta_graphs[0].ClearField("object_graph_def")


def with_restore_called(contents: SavedModelProto) -> None:
    """The signature calls the saver's function, with a path of its own."""
    wrapper = function_of("signature_wrapper", contents)
    call = wrapper.node_def.add(name="restore", op="StatefulPartitionedCall")
    call.attr["f"].func.name = function_of("_traced_restore", contents).signature.name


def with_restore_among_objects(contents: SavedModelProto) -> None:
    nodes = contents.meta_graphs[0].object_graph_def.nodes
    saver = function_of("_traced_restore", contents).signature.name
    nodes.add().function.concrete_functions.append(saver)


def with_restore_in_the_graph(contents: SavedModelProto) -> None:
    contents.meta_graphs[0].graph_def.node.add(name="restore", op="RestoreV2")


def function_of(part: str, contents: SavedModelProto) -> FunctionDef:
    """Found by its name: TensorFlow writes functions in an order that differs between saves."""
    functions = contents.meta_graphs[0].graph_def.library.function
    (found,) = [function for function in functions if part in function.signature.name]
    return found


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without_objects, "has no objects"),
        (with_restore_called, "it has a call that saves or restores, in __inference_sign"),
        (with_restore_among_objects, "it has a call that saves or restores, in the objects"),
        (with_restore_in_the_graph, "it has RestoreV2 in the graph"),
    ],
)
def test_savers_that_would_run_are_refused(
    publish: Callable[..., None],
    tmp_path: Path,
    change: Callable[[SavedModelProto], None],
    message: str,
) -> None:
    publish("first")
    (tmp_path / "model/assets/files.json").unlink()
    path = tmp_path / "model" / SAVED_MODEL_FILE
    contents = SavedModelProto.FromString(path.read_bytes())
    change(contents)
    path.write_bytes(contents.SerializeToString())
    saved = read_saved_model(str(tmp_path / "model"), facts=())
    with pytest.raises(SavedModelError, match=message):
        load_saved_model(saved)


def test_the_index_of_the_variables_is_checked(
    publish: Callable[..., None], tmp_path: Path
) -> None:
    publish("first")
    (tmp_path / "model/assets/files.json").unlink()
    (tmp_path / "model/variables/variables.index").write_bytes(bytes(100))
    saved = read_saved_model(str(tmp_path / "model"), facts=())
    with pytest.raises(SavedModelError, match="it is cut off, or not an index of TensorFlow"):
        load_saved_model(saved)


def read_and_write(name: tf.Tensor) -> tf.Tensor:
    with tf.control_dependencies([tf.io.write_file(name + ".copy", tf.io.read_file(name))]):
        return tf.identity(name)


def count_lines(name: tf.Tensor) -> tf.Tensor:
    return tf.data.TextLineDataset(name).cardinality() + tf.zeros([], tf.int64)


def run_python(name: tf.Tensor) -> tf.Tensor:
    return tf.py_function(str, [name], tf.string)


def restore(name: tf.Tensor) -> tf.Tensor:
    return tf.raw_ops.RestoreV2(
        prefix=name, tensor_names=["w"], shape_and_slices=[""], dtypes=[tf.float32]
    )[0]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (read_and_write, "it has ReadFile in __inference_read.*, WriteFile in __inference_read"),
        (tf.io.matching_files, "it has MatchingFiles in __inference"),
        (count_lines, "it has .*TextLineDataset in __inference_"),
        (run_python, "it has EagerPyFunc in __inference"),
        (restore, "it has a call that saves or restores, in __inference_signature_wrapper"),
    ],
)
def test_a_graph_that_does_more_than_compute_is_refused(
    tmp_path: Path, function: Callable[[tf.Tensor], tf.Tensor], message: str
) -> None:
    publish_saved_model(
        keras.Sequential(),
        {"serving_default": tf.function(function, [tf.TensorSpec([], tf.string)])},
        directory=str(tmp_path / "model"),
        class_list_text="/m/01,cat\n",
        metadata={},
        facts=dict,
        overwrite=False,
    )
    with pytest.raises(SavedModelError, match=message):
        load_saved_model(read_saved_model(str(tmp_path / "model"), facts=()))


def test_a_model_with_variables_loads(tmp_path: Path) -> None:
    """It saves and restores its variables with ops that it must not have elsewhere."""
    model = keras.Sequential([keras.Input([3]), keras.layers.Dense(2, bias_initializer="ones")])
    publish_saved_model(
        model,
        {"serving_default": tf.function(model, [tf.TensorSpec([1, 3], tf.float32)])},
        directory=str(tmp_path / "model"),
        class_list_text="/m/01,cat\n",
        metadata={},
        facts=dict,
        overwrite=False,
    )
    loaded = load_saved_model(read_saved_model(str(tmp_path / "model"), facts=()))
    (found,) = loaded.signatures["serving_default"](tf.zeros([1, 3])).values()
    assert found.numpy().tolist() == [[1, 1]]


def test_a_signature_is_the_only_function_that_is_saved_of_it(
    publish: Callable[..., None], tmp_path: Path
) -> None:
    """A tf.Module that had it as an attribute would have it saved, and loaded, twice."""
    publish("first")
    contents = (tmp_path / "model" / SAVED_MODEL_FILE).read_bytes()
    (graph,) = SavedModelProto.FromString(contents).meta_graphs
    (name,) = graph.object_graph_def.concrete_functions
    assert "signature_wrapper" in name
