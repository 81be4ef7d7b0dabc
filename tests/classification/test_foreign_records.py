"""Records of other programs: damaged ones are named, and those without labels predicted."""

import csv
from pathlib import Path

import cv2
import numpy as np
import pytest
import tensorflow as tf

from tpudet.classification.experiment import predict_split
from tpudet.cli import main
from tpudet.trainkit.errors import UserError
from tpudet.trainkit.records import write_shard

IMAGE = cv2.imencode(".jpg", np.full((40, 40, 3), 90, np.uint8))[1].tobytes()
CUT = IMAGE[:200]  # no image any more, in a file of records that is whole


def write_foreign(folder: Path, **features: object) -> None:
    """Records as tensorflow/tpu writes them, without a manifest; the last train one is changed."""
    (folder / "classes.csv").write_text("a,a\nb,b\n")
    sound = {"image/encoded": IMAGE, "image/class/label": 1, "image/filename": b"x.jpg"}
    for name in ("train", "validation"):
        changed = {**sound, "image/filename": b"last.jpg", **features}
        rows = [sound, sound, changed if name == "train" else sound]
        examples = [
            tf.train.Example(
                features=tf.train.Features(
                    feature={
                        key: tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))
                        if isinstance(value, bytes)
                        else tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))
                        for key, value in row.items()
                        if value is not None
                    }
                )
            )
            for row in rows
        ]
        write_shard(
            str(folder / f"{name}-00000-of-00001"),
            [example.SerializeToString() for example in examples],
        )


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ({"image/encoded": CUT}, "cannot be decoded: last.jpg (record 2 of train-00000-of-00001)"),
        ({"image/class/label": 3}, "A label of this record is not among the 2 rows"),
        ({"image/class/label": None}, "This record has not exactly one label"),
        ({"image/encoded": None}, "A record has no key image/encoded"),
    ],
)
def test_a_record_of_others_that_cannot_be_trained_on_is_named(
    features: dict, message: str, trained_run: Path, tmp_path: Path, capsys
) -> None:
    write_foreign(tmp_path, **features)
    command = ["train", "--config", str(trained_run / "config.yaml"), "--mode", "train"]
    command += ["--model_dir", str(tmp_path / "run"), f"--set=data.directory={tmp_path}"]
    assert main(command) == 2
    said = capsys.readouterr().err
    assert message in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("verb", "command"),
    [
        ("evaluate", ["--model_dir", "RUN", "--split", "train"]),
        ("show_augmented", ["RUN/config.yaml", "--output", "TMP/images.png"]),
        (
            "cache_samples",
            ["RUN/config.yaml", "--output", "TMP/cache", "--variants", "1", "--overwrite"],
        ),
        ("benchmark_input", ["RUN/config.yaml", "--rounds", "1", "--steps", "0"]),
        ("classify", ["TMP/out.csv", "MODEL", "--records", "TMP", "--split", "train"]),
    ],
)
def test_every_verb_names_the_record_that_stops_it(
    verb: str, command: list[str], saved_model: str, trained_run: Path, tmp_path: Path, capsys
) -> None:
    """An image that is cut off, then a byte that has changed, which the check sum tells."""
    write_foreign(tmp_path, **{"image/encoded": CUT})
    (tmp_path / "classes.csv").write_text("blue,blue\ngreen,green\nred,red\n")
    places = {"RUN": trained_run, "TMP": tmp_path, "MODEL": saved_model}
    words = [verb]
    for word in command:
        first, slash, rest = word.partition("/")
        words.append(f"{places.get(first, first)}{slash}{rest}")
    words += [] if verb == "classify" else [f"--set=data.directory={tmp_path}"]
    assert main(words) == 2
    message = "last.jpg (record 2 of train-00000-of-00001)"
    assert message in capsys.readouterr().err
    shard = tmp_path / "train-00000-of-00001"
    content = bytearray(shard.read_bytes())
    content[40] ^= 1  # in the first record
    shard.write_bytes(content)
    assert main(words) == 2
    assert "These files of records are damaged" in capsys.readouterr().err


def test_a_split_without_labels_is_predicted_in_the_order_of_the_classes_asked_for(
    trained_run: Path, tmp_path: Path, capsys
) -> None:
    write_foreign(tmp_path, **{"image/class/label": None})
    (tmp_path / "classes.csv").write_text("blue,blue\ngreen,green\nred,red\n")
    options: dict = {
        "step": "latest",
        "split": "train",
        "overrides": [f"data.directory={tmp_path}"],
    }
    run = str(trained_run)
    names, probabilities = predict_split(run, class_names=["blue", "green", "red"], **options)
    assert names == ["x.jpg", "x.jpg", "last.jpg"]
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-5)
    _, some = predict_split(run, class_names=["red", "blue"], **options)
    np.testing.assert_array_equal(some, probabilities[:, [2, 0]])
    with pytest.raises(UserError, match="has no class any; its classes are blue, green, red"):
        predict_split(run, class_names=["red", "any"], **options)
    command = ["evaluate", "--model_dir", run, "--split", "train"]
    assert main([*command, f"--set=data.directory={tmp_path}"]) == 2
    assert "1 of 3 images of the split train have not exactly one" in capsys.readouterr().err


def test_classify_takes_joined_splits_and_ids_of_records_as_they_are(
    saved_model: str, colors_part: Path, tmp_path: Path
) -> None:
    output = tmp_path / "both.csv"
    command = ["classify", str(output), saved_model, "--records"]
    assert main([*command, str(colors_part), "--split", "val+test"]) == 0
    assert len(list(csv.DictReader(output.read_text().splitlines()))) == 12
    (tmp_path / "classes.csv").write_text("blue,blue\ngreen,green\nred,red\n")
    features = {"image": IMAGE, "id": b"2020.01"}
    example = tf.train.Example(
        features=tf.train.Features(
            feature={
                key: tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))
                for key, value in features.items()
            }
        )
    )
    write_shard(str(tmp_path / "test-00000-of-00001"), [example.SerializeToString()])
    assert main([*command, str(tmp_path), "--force"]) == 0
    assert [row["id"] for row in list(csv.DictReader(output.read_text().splitlines()))] == [
        "2020.01"
    ]


@pytest.mark.parametrize("name", ["classes.csv", "label_map.pbtxt"])
def test_records_beside_another_class_list_are_neither_scored_nor_classified(
    name: str, saved_model: str, trained_run: Path, tmp_path: Path, capsys
) -> None:
    """Their label 1 is red, that of the run is blue: a third of a balanced set would be right."""
    write_foreign(tmp_path)
    (tmp_path / "classes.csv").unlink()
    names = ["red", "green", "blue"]
    csv_text = "".join(f"{name},{name}\n" for name in names)
    items = "".join(f'item {{ id: {k} name: "{name}" }}\n' for k, name in enumerate(names, 1))
    (tmp_path / name).write_text(csv_text if name.endswith("csv") else items)
    commands = [
        ["evaluate", "--model_dir", str(trained_run), f"--set=data.directory={tmp_path}"],
        ["classify", str(tmp_path / "out.csv"), saved_model, "--records", str(tmp_path)],
    ]
    for command in commands:
        assert main([*command, "--split", "train"]) == 2
        said = capsys.readouterr().err
        assert "is not that of the model: class 1 was blue,blue, now red,red" in said
    (tmp_path / "own.csv").write_text(csv_text)
    sets = [f"--set=data.directory={tmp_path}", f"--set=data.classes={tmp_path}/own.csv"]
    assert main(["evaluate", "--model_dir", str(trained_run), "--split", "train", *sets]) == 0


def test_a_number_in_a_local_name_that_is_not_that_of_its_records_is_only_a_name(
    trained_run: Path, tmp_path: Path
) -> None:
    write_foreign(tmp_path)
    (tmp_path / "classes.csv").write_text("blue,blue\ngreen,green\nred,red\n")
    (tmp_path / "test").mkdir()
    (tmp_path / "train-00000-of-00001").rename(tmp_path / "test/00-32x32-5.tfrec")
    command = ["evaluate", "--model_dir", str(trained_run), "--split", "test"]
    assert main([*command, f"--set=data.directory={tmp_path}"]) == 0
