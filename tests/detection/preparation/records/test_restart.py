"""A conversion that is killed, disturbed, repeated or run twice leaves what one run would leave."""

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tpudet.detection.commands import make_tfrecords
from tpudet.detection.preparation.records import build_shard
from tpudet.trainkit.files import storage

NUM_SHARDS = 8
ONE_BOX = {"0.jpg": [(3, 1, 1, 9, 9)]}  # a split to train on has one


def arguments_for(path: Path, images: Path, output: Path, *more: object) -> list[str]:
    arguments = ["--format", "coco", "--annotations", path, "--images", images, "--output", output]
    arguments += ["--split", "train", "--num_shards", NUM_SHARDS, *more]
    return [str(argument) for argument in arguments]


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def children_of(process: int) -> list[int]:
    """Of a process whose children its first thread has started; none where there is no /proc."""
    listed = Path(f"/proc/{process}/task/{process}/children")
    if not listed.exists():
        return []
    children = [int(child) for child in listed.read_text().split()]
    assert len(children) >= 2
    return children


def test_killed_while_writing(
    write_coco, encoded_image, tmp_path, capsys, wait_for, is_running
) -> None:
    # Large images that must be encoded anew: slow enough to be killed amid.
    content = encoded_image(width=1200, height=900, kind="WEBP")
    names = [f"{number}.jpg" for number in range(32)]
    boxes = {name: [(3, number, 0, 10, 10)] for number, name in enumerate(names)}
    sizes = dict.fromkeys(names, (1200, 900))
    path, images = write_coco(dict.fromkeys(names, content), boxes, sizes)
    undisturbed, output = tmp_path / "one/part", tmp_path / "two/part"
    assert make_tfrecords.main(arguments_for(path, images, undisturbed, "--workers", 1)) == 0

    command = arguments_for(path, images, output, "--workers", 2)
    progress = output / "train_part.progress"
    with subprocess.Popen(
        [sys.executable, "-m", "tpudet", "make_tfrecords", *command],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        wait_for(lambda: len(list(progress.glob("*.tfrecord.json"))) >= 2, process)
        workers = children_of(process.pid)
        for worker in workers:
            os.kill(worker, signal.SIGSTOP)
        assert make_tfrecords.main(command) == 2  # two at once
        assert f"is being written by process {process.pid} on" in capsys.readouterr().err
        process.send_signal(signal.SIGKILL)
        for worker in workers:
            os.kill(worker, signal.SIGCONT)
    wait_for(lambda: not any(map(is_running, workers)))

    assert not (output / "train_part.manifest.json").exists()
    reports = progress.glob("*.tfrecord.json")
    finished = [report.with_suffix("") for report in reports]
    assert 2 <= len(finished) < NUM_SHARDS
    times = {shard.name: shard.stat().st_mtime_ns for shard in finished}

    assert make_tfrecords.main(arguments_for(path, images, output, "--workers", 1)) == 0
    assert contents(output) == contents(undisturbed)
    assert {name: (output / name).stat().st_mtime_ns for name in times} == times


def test_a_full_disk_is_said_and_only_what_changed_is_written_again(
    write_coco, encoded_image, tmp_path, capsys, monkeypatch
) -> None:
    names = [f"{number:02d}.jpg" for number in range(16)]
    boxes = {name: [(3, 1, 1, 10, 10)] for name in names}
    path, images = write_coco(dict.fromkeys(names, encoded_image()), boxes)
    output = tmp_path / "part"
    command = arguments_for(path, images, output, "--workers", 1)
    real = build_shard.write_shard

    def fails_at_the_fifth(path: str, records, **options) -> int:
        if "-00004-of-" in path:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(path, records, **options)

    with monkeypatch.context() as patch:
        patch.setattr(build_shard, "write_shard", fails_at_the_fifth)
        assert make_tfrecords.main(command) == 2
    message = capsys.readouterr().err
    assert "-00004-of-00008.tfrecord cannot be written" in message
    assert "No space left on device" in message
    first = sorted(output.glob("train_part.progress/*.tfrecord"))
    assert len(first) == 4
    times = [shard.stat().st_mtime_ns for shard in first]

    records = json.loads(first[1].with_name(f"{first[1].name}.json").read_text())
    assert records["records"] == 2
    content = json.loads(path.read_text())
    changed = set()
    for annotation in content["annotations"]:
        name = content["images"][annotation["image_id"] - 1]["file_name"]
        if name.encode() in first[1].read_bytes():
            annotation["bbox"] = [2, 2, 10, 10]
            changed.add(name)
    assert changed
    path.write_text(json.dumps(content))
    assert make_tfrecords.main(command) == 0
    again = [(output / shard.name).stat().st_mtime_ns for shard in first]
    assert [new != old for new, old in zip(again, times, strict=True)] == [
        False,
        True,
        False,
        False,
    ]


def test_what_a_lost_node_left_half_written_is_removed(
    write_coco, encoded_image, tmp_path, monkeypatch
) -> None:
    path, images = write_coco({f"{n}.jpg": encoded_image() for n in range(8)}, ONE_BOX)
    undisturbed, output = tmp_path / "one/part", tmp_path / "two/part"
    assert make_tfrecords.main(arguments_for(path, images, undisturbed, "--workers", 1)) == 0
    real = build_shard.write_shard

    def beside_a_dead_attempt(path: str, records) -> int:
        Path(f"{path}.0123abcd-0{storage.TEMPORARY_SUFFIX}").write_bytes(b"torn")
        return real(path, records)

    monkeypatch.setattr(build_shard, "write_shard", beside_a_dead_attempt)
    assert make_tfrecords.main(arguments_for(path, images, output, "--workers", 1)) == 0
    assert contents(output) == contents(undisturbed)


def test_a_finished_set_is_kept_and_replaced_only_when_asked(
    write_coco, encoded_image, tmp_path, capsys
) -> None:
    names = [f"{number}.jpg" for number in range(9)]
    path, images = write_coco(dict.fromkeys(names, encoded_image()), ONE_BOX)
    output = tmp_path / "part"
    command = arguments_for(path, images, output, "--workers", 1)
    assert make_tfrecords.main(command) == 0
    before = {file: file.stat().st_mtime_ns for file in output.iterdir()}
    capsys.readouterr()
    assert make_tfrecords.main(command) == 0
    assert "up to date, nothing was written" in capsys.readouterr().out
    assert {file: file.stat().st_mtime_ns for file in output.iterdir()} == before

    progress = output / "train_part.progress"  # what a kill after the manifest leaves
    progress.mkdir()
    (progress / "train_part-00000-of-00008.tfrecord.json").write_text("{}")
    assert make_tfrecords.main(command) == 0
    assert {file: file.stat().st_mtime_ns for file in output.iterdir()} == before

    (images / "4.jpg").write_bytes(encoded_image(quality=50))  # an image file was changed
    assert make_tfrecords.main(command) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert {file: file.stat().st_mtime_ns for file in output.iterdir()} == before
    command[command.index("--num_shards") + 1] = "3"
    assert make_tfrecords.main([*command, "--overwrite"]) == 0
    assert sorted(contents(output)) == [
        "classes.csv",
        *(
            f"train_part-{index:05d}-of-00003.tfrecord{ending}"
            for index in range(3)
            for ending in ("", ".offsets")
        ),
        "train_part.manifest.json",
    ]


@pytest.mark.parametrize("lost", ["a class", "every image"])
def test_a_refused_replacement_leaves_the_finished_set(
    write_coco, encoded_image, tmp_path, capsys, lost: str
) -> None:
    names = [f"{number}.jpg" for number in range(9)]
    encoded_images = dict.fromkeys(names, encoded_image())
    boxes = {name: [(3, 1, 1, 9, 9)] for name in names} | {"8.jpg": [(7, 1, 1, 9, 9)]}
    path, images = write_coco(encoded_images, boxes)
    output = tmp_path / "part"
    command = arguments_for(path, images, output, "--workers", 1, "--overwrite")
    assert make_tfrecords.main(command) == 0
    expected = contents(output)
    for name in ["8.jpg"] if lost == "a class" else names:
        (images / name).write_bytes((encoded_images[name] or b"")[:99])
    assert make_tfrecords.main(command) == 2
    message = capsys.readouterr().err
    wanted = "would lose all boxes of dog (1)" if lost == "a class" else "No image can be used"
    assert wanted in message
    assert contents(output) == expected  # and no folder that forbids to train on it


def start_split(write_coco, encoded_image, folder: Path, split: str, *more: object) -> list[str]:
    """The command that writes a split of images that take a while."""
    names = [f"{number}.jpg" for number in range(16)]
    image = encoded_image(width=800, height=600, kind="WEBP")
    boxes = {name: [(3, 1, 1, 10, 10)] for name in names}
    sizes = dict.fromkeys(names, (800, 600))
    path, images = write_coco(dict.fromkeys(names, image), boxes, sizes)
    command = arguments_for(path, images, folder / "part", "--workers", 1, *more)
    command[command.index("train")] = split
    return command


def test_two_splits_at_once_with_other_class_lists(
    write_coco, encoded_image, tmp_path, capsys, wait_for
) -> None:
    command = start_split(write_coco, encoded_image, tmp_path, "train")
    assert make_tfrecords.main([*command, "--output", str(tmp_path / "model/part")]) == 0
    rows = (tmp_path / "model/part/classes.csv").read_text().splitlines(keepends=True)
    reordered = tmp_path / "reordered.csv"
    reordered.write_text("".join(reversed(rows)))
    assert len(rows) > 1
    output = tmp_path / "part"
    val = [*command, "--classes", str(reordered)]
    val[val.index("train")] = "val"
    with subprocess.Popen(
        [sys.executable, "-m", "tpudet", "make_tfrecords", *command],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        wait_for(lambda: list(output.glob("train_part.progress/*.tfrecord.json")), process)
        os.kill(process.pid, signal.SIGSTOP)
        capsys.readouterr()
        assert make_tfrecords.main(val) == 2
        message = capsys.readouterr().err
        assert "train_part.progress/classes.csv holds other classes" in message
        assert not list(output.glob("val_part*.tfrecord"))
        os.kill(process.pid, signal.SIGCONT)
    assert process.returncode == 0
    assert (output / "classes.csv").read_text() == "".join(rows)
    assert make_tfrecords.main(val) == 2
    assert "row 1 is" in capsys.readouterr().err


def test_class_lists_are_compared_once_more_before_publishing(
    write_coco, encoded_image, tmp_path, capsys, monkeypatch
) -> None:
    command = start_split(write_coco, encoded_image, tmp_path, "train")
    output = tmp_path / "part"
    real = build_shard.write_shard

    def beside_a_run_elsewhere(path: str, records) -> int:
        (output / "classes.csv").write_text("other,other\n")
        return real(path, records)

    monkeypatch.setattr(build_shard, "write_shard", beside_a_run_elsewhere)
    assert make_tfrecords.main(command) == 2
    assert "classes.csv holds other classes" in capsys.readouterr().err
    assert (output / "classes.csv").read_text() == "other,other\n"
    assert not (output / "train_part.manifest.json").exists()


def test_a_claim_lost_while_writing_publishes_nothing(
    write_coco, encoded_image, tmp_path, capsys, monkeypatch
) -> None:
    command = start_split(write_coco, encoded_image, tmp_path, "train")
    output = tmp_path / "part"
    real = build_shard.write_shard

    def while_another_takes_over(path: str, records) -> int:
        claim = output / "train_part.claim.json"
        fields = json.loads(claim.read_text())
        claim.write_text(json.dumps(fields | {"token": "other", "host": "elsewhere"}))
        return real(path, records)

    monkeypatch.setattr(build_shard, "write_shard", while_another_takes_over)
    assert make_tfrecords.main(command) == 2
    assert "was taken over by process" in capsys.readouterr().err
    assert not (output / "train_part.manifest.json").exists()
    assert not list(output.glob("*.tfrecord"))  # not even the shard that was being written


def test_damaged_records_of_an_earlier_run(write_coco, encoded_image, tmp_path, capsys) -> None:
    path, images = write_coco({f"{n}.jpg": encoded_image() for n in range(8)}, ONE_BOX)
    output = tmp_path / "part"
    command = arguments_for(path, images, output, "--workers", 1)
    assert make_tfrecords.main(command) == 0
    expected = contents(output)
    manifest = output / "train_part.manifest.json"
    manifest.write_text(manifest.read_text()[:100])
    assert make_tfrecords.main(command) == 2
    assert f"{manifest} is not JSON, or was cut short" in capsys.readouterr().err
    assert make_tfrecords.main([*command, "--overwrite"]) == 0
    assert contents(output) == expected
    manifest.unlink()
    progress = output / "train_part.progress"
    progress.mkdir()
    for number in range(8):
        sidecar = progress / f"train_part-0000{number}-of-00008.tfrecord.json"
        sidecar.write_text(["{", "[]", "{}", '{"findings": 3}'][number % 4])
    assert make_tfrecords.main(command) == 0
    assert contents(output) == expected


def test_shards_of_unknown_origin_are_not_written_over(
    write_coco, encoded_image, tmp_path, capsys
) -> None:
    path, images = write_coco({f"{n}.jpg": encoded_image() for n in range(8)}, ONE_BOX)
    output = tmp_path / "part"
    output.mkdir()
    foreign = output / "train_part-00000-of-00008.tfrecord"
    foreign.write_bytes(b"precious")
    command = arguments_for(path, images, output, "--workers", 1)
    assert make_tfrecords.main(command) == 2
    assert str(foreign) in capsys.readouterr().err
    assert foreign.read_bytes() == b"precious"
    assert make_tfrecords.main([*command, "--overwrite"]) == 0


def test_killed_as_any_file_gets_its_name(write_coco, encoded_image, tmp_path) -> None:
    """By SIGKILL at the first, second ... renaming of a step and of a set; then run again."""
    names = [f"{number}.jpg" for number in range(4)]
    path, images = write_coco(dict.fromkeys(names, encoded_image()), ONE_BOX)
    program = f"""
import os, signal, sys
from tpudet.detection.commands import make_tfrecords
from tpudet.trainkit.jobs.steps import Step, run_step
from tpudet.trainkit.files import storage
from tpudet.trainkit.files.storage import write_text

rename = storage.rename
left = [0]

def rename_or_die(*arguments, **options):
    left[0] -= 1
    if left[0] == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    rename(*arguments, **options)

def work(folder):
    made = folder + "/made.txt"
    write = lambda: write_text(made, "x") or "done"
    step = Step("make", ({str(path)!r},), {{}}, (made,), write, ())
    run_step(step)
    command = ["--format", "coco", "--annotations", {str(path)!r}, "--images", {str(images)!r}]
    command += ["--split", "train", "--num_shards", "2", "--workers", "1"]
    assert make_tfrecords.main([*command, "--output", folder + "/part"]) == 0

storage.rename = rename_or_die
work({str(tmp_path)!r} + "/undisturbed")
for number in range(1, -left[0] + 1):
    folder = {str(tmp_path)!r} + f"/killed_{{number}}"
    process = os.fork()
    if not process:
        left[0] = number
        work(folder)
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(process, 0)[1]) == signal.SIGKILL
    left[0] = 0
    work(folder)
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", program], check=True, capture_output=True)
    folders = sorted(tmp_path.glob("killed_*"))
    assert len(folders) >= 8  # two of the step file, one of its output, five of the set
    expected = contents(tmp_path / "undisturbed/part")
    for folder in folders:
        assert contents(folder / "part") == expected, folder
        assert sorted(file.name for file in folder.iterdir() if file.is_file()) == [
            "made.txt",
            "made.txt.step.json",
        ], folder
