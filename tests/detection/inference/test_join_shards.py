"""--shard I/N on machines that share nothing, and join_predicted_parts: together one run."""

import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tpudet.detection.commands.join_predicted_parts import main as join
from tpudet.detection.commands.predict import main
from tpudet.detection.inference.join_shards import join_shards
from tpudet.detection.inference.parts import PredictionTask
from tpudet.detection.inference.predictions_file import (
    ImagePredictions,
    Predictions,
    read_predictions,
    write_predictions,
)
from tpudet.trainkit.image_folder import (
    ImageFile,
    ImageFolderError,
    Shard,
    parse_shard,
    shard_output_path,
    take_shard,
)
from tpudet.trainkit.saved_model import SavedModel

SCRIPTS = Path(__file__).parents[3] / "scripts" / "inference"
CLASS_LIST = "/m/01,cat\n/m/02,dog\n"


@pytest.fixture
def folder(jpegs: dict[str, bytes], tmp_path: Path) -> Path:
    """Seven images; one of them is not an image."""
    directory = tmp_path / "images"
    directory.mkdir()
    for name, encoded in jpegs.items():
        (directory / f"{name}.jpg").write_bytes(encoded)
    for name in ("again", "zebra"):
        (directory / f"{name}.jpg").write_bytes(jpegs["wide"])
    (directory / "broken.jpg").write_bytes(b"")
    return directory


def read(path: Path) -> Predictions:
    with path.open("rb") as file:
        return read_predictions(file, path.name)


def assert_equal(found: Predictions, expected: Predictions) -> None:
    assert found.metadata == expected.metadata
    assert found.class_list_text == expected.class_list_text
    assert [i.image_id for i in found.images] == [i.image_id for i in expected.images]
    for image, wanted in zip(found.images, expected.images, strict=True):
        assert image.labels.tolist() == wanted.labels.tolist()
        np.testing.assert_allclose(image.scores, wanted.scores, atol=1e-6)
        np.testing.assert_allclose(image.boxes_normalized, wanted.boxes_normalized, atol=1e-6)


def write(path: Path, images: list[ImagePredictions], **metadata: object) -> str:
    with path.open("wb") as file:
        write_predictions(file, path.name, [images], class_list_text=CLASS_LIST, metadata=metadata)
    return str(path)


def image(name: str) -> ImagePredictions:
    return ImagePredictions(
        name, np.ones(1, np.int32), np.full(1, 0.5, np.float32), np.zeros((1, 4), np.float32)
    )


def facts_of(*names: str, in_bfloat16: bool = False) -> dict[str, Any]:
    """The metadata that tpudet predict writes for these images."""
    images = [ImageFile(name, f"{name}.jpg") for name in names]
    saved = SavedModel("model", CLASS_LIST, {}, "f")
    task = PredictionTask(saved, images, "p.parquet", in_bfloat16=in_bfloat16)
    return {**task.identity(), "unreadable": {}}


def errors_of(capsys: Any, *arguments: object) -> str:
    assert join([str(argument) for argument in arguments]) == 2
    return capsys.readouterr().err


def test_shards_partition_the_list() -> None:
    images = [ImageFile(str(n), f"{n}.jpg") for n in range(10)]
    shards = [take_shard(images, Shard(number, 4)) for number in (1, 2, 3, 4)]
    assert [len(shard) for shard in shards] == [2, 3, 2, 3]
    assert [image for shard in shards for image in shard] == images
    assert take_shard(images, Shard(1, 1)) == images
    with pytest.raises(ImageFolderError, match="10 images cannot be cut into 11 shards"):
        take_shard(images, Shard(1, 11))
    assert parse_shard("2/4") == Shard(2, 4)
    for wrong in ("0/4", "5/4", "1", "1/0", "-1/4", "a/b", "1/2/3"):
        with pytest.raises(ValueError, match="I/N takes part I of N"):
            parse_shard(wrong)
    assert (
        shard_output_path("gs://b/p.v1.parquet", Shard(2, 4)) == "gs://b/p.v1_part_2_of_4.parquet"
    )
    assert shard_output_path("p_part_2_of_4.pkl", Shard(2, 4)) == "p_part_2_of_4.pkl"
    assert shard_output_path("p.parquet", None) == "p.parquet"


def test_joined_shards_are_the_predictions_of_one_run(
    saved_model: Path, folder: Path, tmp_path: Path, capsys: Any
) -> None:
    whole, out = tmp_path / "whole.parquet", tmp_path / "p.parquet"
    assert main([str(whole), str(saved_model), "--images", str(folder)]) == 0
    for number in (1, 2, 3):
        machine = tmp_path / f"machine_{number}"  # the same images, elsewhere
        shutil.copytree(folder, machine)
        command = [str(out), str(saved_model), "--images", str(machine)]
        assert main([*command, "--shard", f"{number}/3"]) == 0
    assert "images (3/3 of 7)" in capsys.readouterr().out
    parts = sorted(tmp_path.glob("p_part_?_of_3.parquet"))
    assert [len(read(part).images) for part in parts] == [1, 2, 3]  # and one that is broken
    assert read(parts[1]).metadata["shard"] == {"number": 2, "of": 3}
    command = [sys.executable, SCRIPTS / "join_predicted_parts.py", out, *reversed(parts)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "p.parquet: 6 images of 3 shards" in done.stdout
    assert_equal(read(out), read(whole))
    # Also against a list of ids, to a pickle, and what the command never replaces unasked.
    ids = tmp_path / "sample_submission.csv"
    ids.write_text("".join(f"{path.stem},\n" for path in folder.iterdir()))
    assert join([str(tmp_path / "p.pkl"), *map(str, parts), "--ids", str(ids)]) == 0
    assert_equal(read(tmp_path / "p.pkl"), read(whole))
    assert "p.parquet exists; -f replaces it" in errors_of(capsys, out, *parts)
    assert join([str(out), *map(str, parts), "--force"]) == 0


def test_what_is_missing_or_twice_is_named(tmp_path: Path, capsys: Any) -> None:
    facts: dict[str, Any] = {"fingerprint": "f", "image_list": {"count": 4}, "unreadable": {}}
    one, two, three, four = (
        write(tmp_path / f"{n}.parquet", [image(f"i{n}")], **facts, shard={"number": n, "of": 4})
        for n in (1, 2, 3, 4)
    )
    out = tmp_path / "out.parquet"
    text = errors_of(capsys, out, one, three, three)
    assert "2 shards are missing: 2/4, 4/4" in text
    assert "shard 3/4 is given 2 times" in text
    assert f"1 images are in two shards: i3 ({three} and {three})" in text
    other = write(
        tmp_path / "other.parquet", [image("i2")], fingerprint="g", shard={"number": 2, "of": 4}
    )
    text = errors_of(capsys, out, one, other, three, four)
    assert f"{other} is of another model than {one}" in text
    assert f"{other} is of another list of images than {one}" in text
    cut = write(tmp_path / "cut.parquet", [image("i2")], **facts, shard={"number": 2, "of": 5})
    assert "shards of 4 and 5, of different cuts" in errors_of(capsys, out, one, cut)
    empty = write(tmp_path / "empty.parquet", [], **facts, shard={"number": 2, "of": 4})
    text = errors_of(capsys, out, one, empty, three, four)
    assert "the shards have 3 images; their whole list has 4" in text

    plain = [
        write(tmp_path / f"plain{name}.parquet", [image(name)], **facts_of(name))
        for name in ("i1", "i2")
    ]
    assert "so give --ids FILE" in errors_of(capsys, out, *plain)
    ids = tmp_path / "ids.txt"
    ids.write_text("i2\ni3\n")
    text = errors_of(capsys, out, *plain, "--ids", ids)
    assert "1 images are missing: i3" in text
    assert "1 images are not among --ids: i1" in text
    ids.write_text("i2\ni1\n")
    assert join([str(out), *plain, "--ids", str(ids)]) == 0
    assert read(out).metadata == facts_of("i1", "i2")  # as of one run
    out.unlink()
    half = write(tmp_path / "half.parquet", [image("i2")], **facts_of("i2", in_bfloat16=True))
    text = errors_of(capsys, out, plain[0], half, "--ids", ids)
    assert f"{half} is of another --precision than {plain[0]}" in text

    bad = tmp_path / "bad.parquet"
    bad.write_bytes(b"PAR1 but no more")
    assert "bad.parquet is not a usable predictions file" in errors_of(capsys, out, one, bad)
    assert "no file" in errors_of(capsys, out, one, tmp_path / "none.parquet")
    assert "is one of the shards" in errors_of(capsys, one, one, two)
    assert not list(tmp_path.glob("out*"))


# For as long as the process: Arrow's threads free the last buffers after a reader has ended, and
# a pool that is gone by then takes the process with it.
COUNTING_POOL = pa.proxy_memory_pool(pa.system_memory_pool())


def test_one_process_joins_into_a_file(tmp_path: Path, capsys: Any, hold_claim: Any) -> None:
    target, part = tmp_path / "p.parquet", write(tmp_path / "a.parquet", [image("1")])
    (tmp_path / "ids").write_text("1\n")
    command = [str(target), part, "--ids", str(tmp_path / "ids")]
    with hold_claim(f"{target}.claim.json") as process:
        assert f"is being written by process {process}" in errors_of(capsys, *command)
    (tmp_path / "link.parquet").symlink_to(part)
    text = errors_of(capsys, tmp_path / "link.parquet", *command[1:], "-f")
    assert "is one of the shards: name RESULT first" in text
    assert join(command) == 0


def test_a_join_that_was_killed_leaves_nothing_to_the_next(tmp_path: Path) -> None:
    part = write(tmp_path / "a.parquet", [image("1")])
    (tmp_path / "ids").write_text("1\n")
    program = f"""
import os, signal
from tpudet.detection.inference import join_shards
def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)
join_shards.write_predictions = die
join_shards.join_shards({str(tmp_path / "p.parquet")!r}, [{part!r}], ids=["1"])
"""
    killed = subprocess.run([sys.executable, "-c", program], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert len(list(tmp_path.glob("p.parquet.*"))) == 2  # a temporary file and a claim
    assert join([str(tmp_path / "p.parquet"), part, "--ids", str(tmp_path / "ids")]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.parquet", "ids", "p.parquet"]


def test_joining_holds_one_block_at_a_time(tmp_path: Path) -> None:
    """Two files of 30 blocks: of their 12 MB, Arrow never holds a tenth."""
    rng = np.random.default_rng(0)
    paths = []
    for number in (1, 2):
        path = tmp_path / f"{number}.parquet"
        blocks = [
            [
                ImagePredictions(
                    f"{number}-{block}-{i}",
                    rng.integers(1, 3, 200).astype(np.int32),
                    rng.random(200).astype(np.float32),
                    rng.random((200, 4)).astype(np.float32),
                )
                for i in range(40)
            ]
            for block in range(30)
        ]
        metadata = {"shard": {"number": number, "of": 2}, "fingerprint": "f"}
        with path.open("wb") as file:
            write_predictions(
                file, path.name, blocks, class_list_text=CLASS_LIST, metadata=metadata
            )
        paths.append(str(path))
    size = sum(Path(path).stat().st_size for path in paths)
    before = pa.default_memory_pool()
    pa.set_memory_pool(COUNTING_POOL)
    try:
        assert join_shards(str(tmp_path / "all.parquet"), paths) == 2 * 30 * 40
    finally:
        pa.set_memory_pool(before)
    assert size > 10e6
    assert 0 < (COUNTING_POOL.max_memory() or 0) < size / 10
