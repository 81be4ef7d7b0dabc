"""The notebooks run from top to bottom on a CPU, on a sample set, and resume by the same cells."""

import ast
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from glob import glob
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from tpudet.cli import main

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
NAMES = sorted(path.name for path in NOTEBOOKS.glob("*.ipynb"))
SMALL = [
    *("data.canvas_size=[64,64]", "train.batch_size=4", "train.total_steps=4"),
    *("train.learning_rate.warmup_steps=1", "evaluation.schedule.every_steps=4"),
]


def read_cells(name: str) -> list[tuple[str, bool]]:
    """The source of each code cell, and whether it is the one with the parameters."""
    cells = json.loads((NOTEBOOKS / name).read_text())["cells"]
    return [
        ("".join(cell["source"]), "parameters" in cell["metadata"].get("tags", []))
        for cell in cells
        if cell["cell_type"] == "code"
    ]


def run_cells(name: str, **parameters: Any) -> dict[str, Any]:
    """Runs the cells in one namespace, with other parameters."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for source, is_parameters in read_cells(name):
        exec(compile(source, name, "exec"), namespace)
        if is_parameters:
            unknown = parameters.keys() - namespace.keys()
            assert not unknown, f"{name} has no parameters {unknown}"
            namespace |= parameters
    return namespace


@pytest.mark.parametrize("name", NAMES)
def test_cells_are_python_with_one_of_parameters_and_hold_no_outputs(name: str) -> None:
    cells = read_cells(name)
    assert [is_parameters for _, is_parameters in cells].count(True) == 1
    for source, _ in cells:
        ast.parse(source)
    whole = json.loads((NOTEBOOKS / name).read_text())
    # The wheel is compiled: its name is of one platform and Python.
    assert not any("-py3-none-any" in source for source, _ in cells)
    assert not any(cell.get("outputs") for cell in whole["cells"])


@pytest.mark.parametrize("name", ["kaggle_tpu.ipynb", "colab.ipynb", "kaggle.ipynb"])
def test_a_notebook_finishes_a_conversion_and_predicts_with_the_export_of_its_part(
    name: str, tmp_path: Path
) -> None:
    """The second split of `mine` was interrupted, and `final` has another part of the config."""
    calls: list[tuple[str, ...]] = []
    splits = [["--split", "train=0.9,val=0.1"], ["--split", "test"]]
    records, final = tmp_path / "converted/mine", tmp_path / "final"
    records.mkdir(parents=True)
    (records / "classes.csv").touch()
    for split in ("train", "val"):
        (records / f"{split}_mine.manifest.json").touch()
    for age, part in ((-1, "other"), (0, "mine")):
        (final / f"c-{part}-64").mkdir(parents=True)
        os.utime(final / f"c-{part}-64", (100 + age, 100 + age))
    (final / "c-other-64").touch()  # exported since
    namespace: dict[str, Any] = {
        **{"STORAGE": str(tmp_path), "PART": "mine", "CONFIG": "c", "RUN": "c-mine"},
        **{"SPLITS": splits, "TEST_IMAGES": "i", "SUBMISSION": "s.csv", "MAX_HOURS": 8.5},
        **{"RECORDS": str(records), "MODEL_DIR": "m", "code": 0, "FINISHED": (0,)},
        **{"os": os, "re": re, "glob": glob, "find_inputs": lambda _: []},
        **{"time": time, "STARTED": time.time(), "shutil": shutil},
        **dict.fromkeys(("tpudet", "tpudet_command"), lambda *words: calls.append(words)),
    }
    for source, _ in read_cells(name):
        if '"make_tfrecords"' in source or '"predict"' in source:
            exec(compile(source, name, "exec"), namespace)
    conversions = [words for words in calls if words[0] == "make_tfrecords"]
    assert conversions == [("make_tfrecords", "--split", "test", "--output", str(records))]
    (prediction,) = (words for words in calls if words[0] == "predict")
    assert prediction[2] == str(final / "c-mine-64")


def kaggle_session(name: str, folder: Path, **changes: Any) -> list[tuple[Any, ...]]:
    """Runs a notebook's cells after the install, as a session; returns the commands of tpudet."""
    calls: list[tuple[Any, ...]] = []

    def command(*words: Any, expected: tuple[int, ...] = (0,)) -> int:
        calls.append(words)
        for place, verb in (("final/c-mine-64", "export"), ("saved/c-mine", "train")):
            if words[0] == verb:
                (folder / "working/output" / place).mkdir(parents=True, exist_ok=True)
        return 0

    storage = folder / "working" / ("" if name == "kaggle_flowers.ipynb" else "output")
    parameters = {
        **{"INPUT": f"{folder}/input", "CONFIG": "c", "PART": "mine", "SPLITS": []},
        **{"STORAGE": str(storage), "SUBMISSION": "s.csv", "TEST_IMAGES": "i", "NUM_CLASSES": 2},
    }
    namespace: dict[str, Any] = {}
    for source, is_parameters in read_cells(name):
        if "find_spec" in source and "def " not in source:
            continue  # the install
        exec(compile(source, name, "exec"), namespace)
        if is_parameters:
            namespace |= {key: value for key, value in parameters.items() if key in namespace}
            namespace |= changes
        for function in ("tpudet", "tpudet_command"):
            if function in namespace:
                namespace[function] = command
    return calls


# A training that takes a second to save when it is interrupted; a second signal would end it.
TRAINING = """
import pathlib, signal, sys, time

def save(*_):
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    time.sleep(1)
    pathlib.Path("saved").touch()
    sys.exit(75)

if sys.argv[1] == "train":
    signal.signal(signal.SIGINT, save)
    pathlib.Path("ready").touch()
    time.sleep(60)
"""


@pytest.mark.parametrize("name", NAMES)
def test_a_training_cell_that_is_interrupted_has_saved(name: str, tmp_path: Path) -> None:
    """Jupyter sends the signal to the whole group of the kernel."""
    (tmp_path / "tpudet").mkdir()
    (tmp_path / "tpudet/__main__.py").write_text(TRAINING)
    cells = [
        source
        for source, is_parameters in read_cells(name)
        if is_parameters or "def tpudet" in source
    ]
    command = "tpudet_command" if "def tpudet_command(" in cells[-1] else "tpudet"
    program = "\n".join([*cells, f"{command}('train')"])
    with subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        process_group=0,
        stderr=subprocess.PIPE,
        text=True,
    ) as kernel:
        while kernel.poll() is None and not (tmp_path / "ready").exists():
            time.sleep(0.02)
        time.sleep(0.3)  # by now the cell waits for it
        os.killpg(kernel.pid, signal.SIGINT)
        _, errors = kernel.communicate(timeout=30)
    assert errors.endswith("KeyboardInterrupt\n"), errors
    assert (tmp_path / "saved").exists()


def write_run(folder: Path, step: int) -> None:
    folder.mkdir(parents=True)
    (folder / "checkpoint").write_text(f'model_checkpoint_path: "model.ckpt-{step}"\n')


KAGGLE = ["kaggle.ipynb", "kaggle_tpu.ipynb", "kaggle_flowers.ipynb"]


@pytest.mark.parametrize("name", KAGGLE)
def test_a_session_on_kaggle_goes_on_from_the_newest_output_and_says_so(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Outputs are mounted in two ways; a copy that was cut short counts for nothing."""
    monkeypatch.setattr(os, "environ", dict(os.environ))
    run = "flowers" if name == "kaggle_flowers.ipynb" else "output/saved/c-mine"
    place = tmp_path / "working" / run
    kaggle_session(name, tmp_path)
    assert "Begins at step 0: there is no " + run in capsys.readouterr().out
    write_run(tmp_path / "input/my-notebook" / run, 9)
    write_run(tmp_path / "input/notebooks/me/my-notebook" / run, 12)
    place.with_name(f"{place.name}.part").mkdir()  # beside a run that has saved nothing
    kaggle_session(name, tmp_path)
    assert "Continues from step 12 of " in capsys.readouterr().out
    assert (place / "checkpoint").read_text().endswith('ckpt-12"\n')
    assert not place.with_name(f"{place.name}.part").exists()
    (place / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-15"\n')
    kaggle_session(name, tmp_path)
    assert "Continues from step 15 of this session" in capsys.readouterr().out


@pytest.mark.parametrize("name", KAGGLE)
@pytest.mark.parametrize(
    ("hours_before", "hours_left", "predicts"), [(0.0, 8.5, True), (7.75, 0.75, False)]
)
def test_the_time_limit_counts_from_the_start_of_the_session(
    name: str,
    hours_before: float,
    hours_left: float,
    predicts: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(os, "environ", dict(os.environ))
    started = time.time() - 3600 * hours_before
    calls = kaggle_session(name, tmp_path, MAX_HOURS=8.5, STARTED=started)
    hours_spent = (time.time() - started) / 3600  # `tpudet check` among them, however busy we are
    (train,) = (words for words in calls if words[0] == "train")
    limit = train[train.index("--max_hours") + 1]
    assert 8.5 - hours_spent - 0.01 <= limit <= hours_left + 0.01
    assert any(words[0] in ("predict", "classify") for words in calls) == predicts
    assert ("predict in the next session" in capsys.readouterr().out) != predicts


@pytest.mark.slow
@pytest.mark.parametrize("name", ["kaggle_tpu.ipynb", "colab.ipynb"])
def test_a_notebook_trains_resumes_and_submits(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "environ", {**os.environ, "KERAS_BACKEND": "tensorflow"})
    images = f"{tmp_path}/images"
    assert main(["make_sample_set", "--output", images, "--num_images", "20"]) == 0
    common = ["--format", "open_images", "--classes", f"{images}/classes.csv"]
    parameters: dict[str, Any] = {
        "SPLITS": [
            [*common, "--annotations", f"{images}/{split}_boxes.csv"]
            + ["--images", f"{images}/{split}", "--split", split]
            for split in ("train", "val")
        ],
        "TEST_IMAGES": f"{images}/val",
        "CONFIG": "quickstart",
        "SETTINGS": SMALL,
        "STORAGE": f"{tmp_path}/output",
        "INPUT": f"{tmp_path}/input",
    }
    first = run_cells(name, **parameters, MAX_HOURS=1e-6)
    assert first["code"] == 80
    if name == "kaggle_tpu.ipynb":  # the next session has another disk
        earlier = tmp_path / "input/notebooks/me/my-notebook"
        earlier.mkdir(parents=True)
        (tmp_path / "output").rename(earlier / "output")
    second = run_cells(name, **parameters, MAX_HOURS=1.0)
    assert second["code"] == 0
    submission = tmp_path / "output/predictions/quickstart-mine.csv"
    assert submission.read_text().startswith("ImageId,PredictionString\n")
    assert sys.modules.get("google.colab") is None


@pytest.mark.slow
def test_the_kaggle_notebook_finds_its_earlier_output_and_submits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "environ", {**os.environ, "KERAS_BACKEND": "tensorflow"})
    images = f"{tmp_path}/input/mine"
    assert main(["make_sample_set", "--output", images, "--num_images", "20"]) == 0
    common = ["--format", "open_images", "--classes", f"{images}/classes.csv"]
    parameters: dict[str, Any] = {
        "INPUT": f"{tmp_path}/input",
        "SPLITS": [
            [*common, "--annotations", f"{images}/{split}_boxes.csv"]
            + ["--images", f"{images}/{split}", "--split", split]
            for split in ("train", "val")
        ],
        "TEST_IMAGES": f"{images}/val",
        "CONFIG": "quickstart",
        "SETTINGS": SMALL,
        "STORAGE": f"{tmp_path}/working/output",
        "SUBMISSION": f"{tmp_path}/working/submission.csv",
    }
    assert run_cells("kaggle.ipynb", **parameters, MAX_HOURS=1e-6)["code"] == 80
    # The next session has an empty disk, and the output of the first one among its inputs: the
    # records, for its training ended before the first step.
    (tmp_path / "working").rename(tmp_path / "input/my-notebook")
    assert run_cells("kaggle.ipynb", **parameters, MAX_HOURS=1.0)["code"] == 0
    ledger = (tmp_path / "working/output/saved/quickstart-mine/metrics.jsonl").read_text()
    states = [json.loads(line) for line in ledger.splitlines() if '"state"' in line]
    assert [line["state"] for line in states if line["kind"] == "state"][-1] == "finished"
    manifests = [
        (tmp_path / place / "output/converted/mine/train_mine.manifest.json").stat()
        for place in ("input/my-notebook", "working")
    ]
    assert manifests[0].st_mtime_ns == manifests[1].st_mtime_ns  # copied, not written again
    submission = tmp_path / "working/submission.csv"
    assert submission.read_text().startswith("ImageId,PredictionString\n")


def test_the_quickstart_notebook_ends_with_detections_in_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "environ", {**os.environ, "KERAS_BACKEND": "tensorflow"})
    parameters = {"NUM_IMAGES": 20, "CONFIG": "quickstart", "SETTINGS": SMALL}
    namespace = run_cells("quickstart.ipynb", **parameters)
    detections = namespace["detections"]
    assert len(detections) == 4  # a fifth of the images is for validation
    assert len(namespace["table"]) == sum(len(one.labels) for one in detections)
    assert (tmp_path / "output/quickstart/saved/quickstart-sample/report.html").exists()
    assert (tmp_path / "output/quickstart/converted/sample/report.html").exists()


def write_tfrec(path: Path, images: list[Path], labels: list[int | None]) -> None:
    """Records as Kaggle's flowers have them; those to predict have no class."""
    with tf.io.TFRecordWriter(str(path)) as writer:
        for image, label in zip(images, labels, strict=True):
            values = {
                "image": tf.train.Feature(
                    bytes_list=tf.train.BytesList(value=[image.read_bytes()])
                ),
                "id": tf.train.Feature(bytes_list=tf.train.BytesList(value=[image.stem.encode()])),
            }
            if label is not None:
                values["class"] = tf.train.Feature(int64_list=tf.train.Int64List(value=[label]))
            example = tf.train.Example(features=tf.train.Features(feature=values))
            writer.write(example.SerializeToString())


@pytest.mark.slow
def test_the_flowers_notebook_trains_resumes_and_submits(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd
) -> None:
    """On hand signs: two of each sign to train on, one to evaluate, one to predict."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "environ", {**os.environ, "KERAS_BACKEND": "tensorflow"})
    folders = sorted((data_dir / "sign_digits/images").iterdir())
    small = [sorted(p for p in f.iterdir() if p.stat().st_size < 100_000) for f in folders]
    parts = {"train": slice(0, 2), "val": slice(2, 3), "test": slice(3, 4)}
    for split, part in parts.items():
        images = [path for paths in small for path in paths[part]]
        labels = [
            k if split != "test" else None for k, paths in enumerate(small) for _ in paths[part]
        ]
        (tmp_path / "data" / split).mkdir(parents=True)
        write_tfrec(tmp_path / "data" / split / f"00-224x224-{len(images)}.tfrec", images, labels)
    parameters: dict[str, Any] = {
        "DATA": f"{tmp_path}/data",
        "NUM_CLASSES": 10,
        "CONFIG": "effnetlite0_112",
        "SETTINGS": [
            *("train.weights=null", "data.image_size=[32,32]", "train.batch_size=4"),
            *("train.total_steps=4", "train.iterations_per_loop=2", "train.log_every_steps=2"),
            *("train.learning_rate.warmup_steps=1", "evaluation.schedule.every_steps=4"),
        ],
        "STORAGE": f"{tmp_path}/output",
        "INPUT": f"{tmp_path}/input",
    }
    first = run_cells("kaggle_flowers.ipynb", **parameters, MAX_HOURS=1e-6)
    assert first["code"] == 80
    assert (first["devices"].kind, first["devices"].backend) == ("CPU", "tensorflow")
    assert "cores of a CPU: training runs on tensorflow" in capfd.readouterr().out
    (tmp_path / "input").mkdir()
    (tmp_path / "output").rename(tmp_path / "input/my-notebook")  # the next session's disk is empty
    assert run_cells("kaggle_flowers.ipynb", **parameters, MAX_HOURS=1.0)["code"] == 0
    header, *rows = (tmp_path / "output/submission.csv").read_text().splitlines()
    assert header == "id,label"
    assert [row.split(",")[0] for row in rows] == sorted(paths[3].stem for paths in small)
    assert {row.split(",")[1] for row in rows} <= {str(k) for k in range(10)}
