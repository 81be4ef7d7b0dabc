"""Balanced TFRecords of one part's classes, from an Open Images CSV."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tpudet.detection.commands import gen_tfrecords
from tpudet.detection.preparation.sources.box_csv import ALL_COLUMNS

# Twenty images: a beetle in 2, an ant in 6, a bee in 12 and in one of the beetles' and ants';
# images 18 and 19 hold a wasp, which is not a class of the part.
HELD = {0: ("ant", "beetle"), 1: ("bee", "beetle"), 2: ("ant", "bee")}
HELD |= {number: ("ant",) for number in range(3, 7)}
HELD |= {number: ("bee", "wasp") for number in range(7, 18)}
HELD |= {18: ("wasp",), 19: ("wasp",)}
CLASSES = "/m/bee,Bee\n/m/ant,Ant\n/m/beetle,Beetle\n"


@pytest.fixture
def part(tmp_path, encoded_image) -> Path:
    """A folder with boxes.csv, classes_insects.csv and the images, of which two lie apart."""
    rows = [",".join(ALL_COLUMNS)]
    for number, names in HELD.items():
        folder = tmp_path / ("more" if number in (5, 6) else "photos")
        folder.mkdir(exist_ok=True)
        (folder / f"{number:016x}.jpg").write_bytes(encoded_image(quality=60 + number))
        for name in names:
            rows.append(f"{number:016x},xclick,/m/{name},1,0.1,0.5,0.25,0.75,0,0,0,0,0")
    (tmp_path / "boxes.csv").write_text("\n".join(rows) + "\n")
    (tmp_path / "classes_insects.csv").write_text(CLASSES)
    return tmp_path


def generate(part: Path, *more: object) -> int:
    arguments = ["--image_info_file", part / "boxes.csv", "--workers", 1, "--num_shards", 2]
    arguments += ["--classes_file", part / "classes_insects.csv", "--image_dir", part / "photos"]
    arguments += ["--image_dir2", part / "more", "--output", part / "converted/insects"]
    return gen_tfrecords.main([str(argument) for argument in (*arguments, *more)])


def test_display_only_prints_the_imbalance_and_writes_nothing(part, capsys) -> None:
    before = sorted(part.rglob("*"))
    more = ("--min_samples_per_class", 10, "--max_copies", 4, "--display_only")
    assert generate(part, "--image_dir", "nowhere", *more) == 0
    # Beetles 2 times 4 copies; ants need 10, 4 come with a beetle, so 6 of the other 5 images;
    # bees: 4 with a beetle, one or two with an ant, 11 alone.
    lines = capsys.readouterr().out.splitlines()
    bees = lines[-3].split()[2]
    assert bees in ("16", "17")
    assert lines == [
        "21 of 34 boxes are of the classes, in 18 of 20 images",
        "images per class before: least 2 (Beetle), most 13 (Bee), ratio 6.5",
        f"images per class after:  least 8 (Beetle), most {bees} (Bee), ratio {int(bees) / 8:.1f}",
        "images: 18, written: 25, each at most 4 times",
        "  class     before     after",
        "  Beetle         2         8  below the minimum",
        "  Ant            6        10",
        f"  Bee           13        {bees}",
        "short of the minimum, 1: Beetle 8",
        f"Nothing was written; 2 file(s) {part}/converted/insects/train_insects-* would be.",
    ]
    assert sorted(part.rglob("*")) == before


def test_every_class_is_in_as_many_records_as_asked_for(part, read_back) -> None:
    assert generate(part, "--min_samples_per_class", 10) == 0
    output = part / "converted/insects"
    records = read_back(output, "train")
    copies = Counter(int(record.source_id, 16) for record in records)
    assert set(copies) == set(range(18))  # the wasps' own images are none of the part
    assert (copies[0], copies[1]) == (5, 5)
    assert sorted(copies[number] for number in range(2, 7)) == [1] * 5  # 5 come with a beetle
    assert all(copies[number] == 1 for number in range(7, 18))
    held = Counter(label for record in records for label in set(record.labels))
    assert held == {1: 5 + 1 + 11, 2: 10, 3: 10}
    for record in records:
        number = int(record.source_id, 16)
        folder = "more" if number in (5, 6) else "photos"
        assert record.encoded == (part / folder / f"{number:016x}.jpg").read_bytes()
        assert len(record.labels) == sum(name != "wasp" for name in HELD[number])
    assert (output / "classes.csv").read_text() == CLASSES
    manifest = json.loads((output / "train_insects.manifest.json").read_text())
    assert manifest["left_out"] == manifest["repaired"] == []
    assert manifest["images"] == len(records) == 26
    options = manifest["options"]
    assert (options["balance"], options["max_copies"], options["seed"]) == (10, None, 0)
    assert options["images"] == [str(part / "photos"), str(part / "more")]
    assert options["image_check"] == "headers"
    assert (options["boxes_read"], options["boxes_taken"], options["images_read"]) == (34, 21, 20)
    assert options["copies"] == {"images": 18, "records": 26, "most_copies": 5, "shortfalls": {}}


def test_the_files_depend_on_the_seed_and_not_on_the_order_of_the_images_in_the_csv(part) -> None:
    header, *rows = (part / "boxes.csv").read_text().splitlines()
    contents = []
    for number, seed in enumerate((1, 1, 2)):
        shuffled = np.random.default_rng(number).permutation(rows).tolist()
        shuffled.sort(key=lambda row: number * int(row[15], 16) % 7)
        by_image: dict[str, list[str]] = {}
        for row in shuffled:
            by_image.setdefault(row[:16], []).append(row)
        lines = [row for found in by_image.values() for row in sorted(found)]
        (part / "boxes.csv").write_text("\n".join([header, *lines]) + "\n")
        output = part / f"{number}/insects"
        more = ("--min_samples_per_class", 11, "--seed", seed, "--output", output)
        assert generate(part, *more) == 0
        contents.append([path.read_bytes() for path in sorted(output.glob("*.tfrecord"))])
    assert contents[0] == contents[1] != contents[2]


def test_missing_images_are_counted_named_and_end_it_unless_told_otherwise(
    part, read_back, capsys
) -> None:
    for number in (*range(7, 17), 1, 5):
        for path in part.glob(f"*/{number:016x}.jpg"):
            path.unlink()
    before = sorted(part.rglob("*"))
    assert generate(part, "--min_samples_per_class", 6) == 2
    names = [f"  {number:016x}.jpg" for number in (1, 5, *range(7, 15))]
    assert capsys.readouterr().err.splitlines() == [
        f"tpudet gen_tfrecords: 12 of 18 image files are not in {part}/photos or {part}/more:",
        *names,
        "  ...",
        "Fetch them, or pass --skip_missing to leave these images out.",
    ]
    assert sorted(part.rglob("*")) == before

    assert generate(part, "--min_samples_per_class", 6, "--skip_missing") == 0
    output = part / "converted/insects"
    copies = Counter(int(record.source_id, 16) for record in read_back(output, "train"))
    # Beetles are left with image 0, six times; bees with 2 (an ant's) and 17, the rarer class
    # now, so that 2 and 17 are theirs, three times each.
    assert copies == {0: 6, 2: 3, 17: 3, 3: 1, 4: 1, 6: 1}
    manifest = json.loads((output / "train_insects.manifest.json").read_text())
    left_out = {entry["file"]: entry["detail"] for entry in manifest["left_out"]}
    assert len(left_out) == 12
    assert left_out[f"{1:016x}.jpg"] == "with 2 boxes"
    assert manifest["options"]["skip_missing"] is True


def test_validation_keeps_the_order_of_the_csv_and_paths_have_defaults(
    part, read_back, monkeypatch
) -> None:
    monkeypatch.setenv("DATA", str(part))
    monkeypatch.setenv("STORAGE", str(part / "storage"))
    (part / "prepared").mkdir(parents=True)
    (part / "photos").rename(part / "validation")
    for path in (part / "more").iterdir():
        path.rename(part / "validation" / path.name)
    (part / "storage/prepared").mkdir(parents=True)
    header, *rows = (part / "boxes.csv").read_text().splitlines()
    boxes = part / "storage/prepared/val_insects.csv"
    boxes.write_text("\n".join([header, *reversed(rows)]) + "\n")
    arguments = ["--classes_file", str(part / "classes_insects.csv"), "--split", "val"]
    assert gen_tfrecords.main([*arguments, "--num_shards", "1", "--workers", "1"]) == 0
    records = read_back(part / "storage/converted/insects", "val")
    assert [int(record.source_id, 16) for record in records] == list(range(17, -1, -1))


def test_a_prefix_as_of_the_predecessor_is_the_folder_and_the_names_of_its_files(
    part, capsys
) -> None:
    arguments = ["--image_info_file", part / "boxes.csv", "--image_dir", part / "photos"]
    arguments += ["--image_dir2", part / "more", "--classes_file", part / "classes_insects.csv"]
    arguments = [*map(str, arguments), "--num_shards", "1", "--workers", "1"]
    prefix = f"{part}/converted/bugs/train_bugs"
    assert gen_tfrecords.main([*arguments, "--output_prefix", prefix]) == 0
    assert Path(f"{prefix}-00000-of-00001.tfrecord").exists()
    assert gen_tfrecords.main([*arguments, "--output_prefix", f"{part}/bugs/train"]) == 2
    assert f"give {part}/bugs/train_bugs, or --output" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"boxes.csv": ""}, "The box CSV {part}/boxes.csv is empty"),
        ({"boxes.csv": ",".join(ALL_COLUMNS) + "\n"}, "has a header and no row"),
        ({"boxes.csv": "ImageID;LabelName;XMin\na;b;0\n"}, "separated by ';'"),
        ({"boxes.csv": "ImageID,LabelName,XMin,XMax,YMin,YMax\n"}, "lacks the column IsGroupOf"),
        ({"classes_insects.csv": "/m/fly,Fly\n"}, "None of the 34 boxes belongs to the 1 listed"),
        ({"classes_insects.csv": "/m/fly\n"}, "The class list {part}/classes_insects.csv: "),
        ({"--image_info_file": "nowhere.csv"}, "The box CSV nowhere.csv does not exist"),
        ({"--classes_file": "nowhere.csv"}, "The class list nowhere.csv does not exist"),
        ({"--image_dir": "nowhere"}, "--image_dir nowhere does not exist"),
        ({"--num_shards": "19"}, "--num_shards 19 must be in 1..18"),
        ({"--max_copies": "3"}, "--max_copies 3 limits copies, but"),
        ({"--split": "val", "--min_samples_per_class": "3"}, "is for the split train only"),
    ],
)
def test_bad_input_is_one_message_and_status_2(part, capsys, change: dict, message: str) -> None:
    flags: list[str] = []
    for name, value in change.items():
        if name.startswith("--"):
            flags += [name, value]
        else:
            (part / name).write_text(value)
    before = sorted(part.rglob("*"))
    assert generate(part, *flags) == 2
    errors = capsys.readouterr().err
    assert errors.startswith("tpudet gen_tfrecords: ")
    assert message.replace("{part}", str(part)) in errors
    assert sorted(part.rglob("*")) == before


def test_the_script_passes_the_exit_status_on() -> None:
    script = Path(__file__).parents[4] / "scripts/gen_tfrecords.py"
    arguments = ["--classes_file", "nowhere.csv", "--image_info_file", "-", "--display_only"]
    ended = subprocess.run(
        [sys.executable, script, *arguments], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 2
    assert ended.stderr == "tpudet gen_tfrecords: The class list nowhere.csv does not exist.\n"
