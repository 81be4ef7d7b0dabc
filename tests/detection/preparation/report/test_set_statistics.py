"""The numbers behind the page: by hand, against the source's own JSON, against raw records."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tpudet.detection.commands import make_tfrecords
from tpudet.detection.preparation.report.sample_images import (
    SAMPLE_BYTES,
    choose_samples,
    draw_sample,
)
from tpudet.detection.preparation.report.set_statistics import (
    SplitColumns,
    aspect_ratios,
    boxes_per_image,
    read_example,
    read_numbers,
    relative_sides,
    size_groups,
)
from tpudet.trainkit.class_list import ClassEntry
from tpudet.trainkit.images.standardize import decode_rgb
from tpudet.trainkit.pages.drawing import class_colour

CLASSES = tuple(ClassEntry(f"/m/{n}", f"class {n}") for n in range(1, 6))


def test_numbers_of_a_set_that_a_person_can_count(write_part, drawn_image) -> None:
    train = [
        drawn_image("a", [(1, 0, 0, 32, 32), (1, 10, 10, 41, 43), (2, 0, 0, 96, 96)]),
        drawn_image("empty"),
        drawn_image("b", [(1, 50, 100, 100, 200)], crowd=True),
    ]
    val = [drawn_image("c", [(3, 0, 0, 50, 25)], height=50, width=50)]
    numbers = read_numbers(str(write_part({"train": train, "val": val}, CLASSES)))
    columns, counts = numbers.columns[0], numbers.counts[0]
    assert numbers.split_names == ["train", "val"]
    assert counts.images.tolist() == [2, 1, 0, 0, 0]
    assert counts.boxes.tolist() == [3, 1, 0, 0, 0]
    assert boxes_per_image(columns).tolist() == [3, 0, 1]
    assert columns.is_crowd.tolist() == [False, False, False, True]
    # 31 x 33 = 1023 pixels are small, 32 x 32 medium, 96 x 96 large; 50 x 100 medium.
    assert size_groups(columns).tolist() == [1, 2, 1]
    # A quarter of 100 x 200 pixels has half the side.
    assert relative_sides(columns)[3] == pytest.approx(0.5)
    np.testing.assert_allclose(aspect_ratios(columns), [1, 33 / 31, 1, 2], rtol=1e-5)
    assert aspect_ratios(numbers.columns[1]).tolist() == [0.5]
    assert numbers.boxes.tolist() == [3, 1, 1, 0, 0]
    assert numbers.lacking.tolist() == [
        [False, False, True, True, True],
        [True, True, False, True, True],
    ]


def test_any_record_is_found_again_without_those_before_it(write_part, drawn_image) -> None:
    drawn_images = [drawn_image(f"name {n}" * (n % 3 + 1), [(1, 0, 0, 9, 9)] * n) for n in range(7)]
    numbers = read_numbers(str(write_part({"train": drawn_images}, CLASSES, num_shards=3)))
    assert numbers.columns[0].shards.tolist() == [0, 0, 0, 1, 1, 2, 2]
    for row, wanted in enumerate(drawn_images):
        example = read_example(numbers.prepared.splits[0], numbers.columns[0], row)
        assert example.source_id.numpy().decode() == wanted.name
        assert len(example.labels) == len(wanted.boxes)


def convert_coco(data_dir: Path, output: Path, split: str) -> dict:
    """Converts a split; returns the source's own JSON."""
    annotations = data_dir / f"coco_tiny/annotations/instances_{split}2017.json"
    arguments = ["--format", "coco", "--annotations", annotations, "--split", split]
    arguments += ["--images", data_dir / f"coco_tiny/{split}2017", "--output", output]
    arguments += ["--num_shards", 2, "--workers", 1]
    assert make_tfrecords.main([str(argument) for argument in arguments]) == 0
    return json.loads(annotations.read_text())


def test_coco_agrees_with_its_json_and_with_raw_records(data_dir, tmp_path) -> None:
    output = tmp_path / "converted/coco"
    sources = {split: convert_coco(data_dir, output, split) for split in ("train", "val")}
    numbers = read_numbers(str(output))
    assert [entry.name for entry in numbers.prepared.classes[:2]] == ["person", "bicycle"]
    for index, (split, source) in enumerate(sources.items()):
        columns, counts = numbers.columns[index], numbers.counts[index]
        names = {category["id"]: category["name"] for category in source["categories"]}
        boxes = Counter(names[a["category_id"]] for a in source["annotations"])
        pairs = {(a["image_id"], names[a["category_id"]]) for a in source["annotations"]}
        images = Counter(name for _, name in pairs)
        classes = [entry.name for entry in numbers.prepared.classes]
        assert counts.boxes.tolist() == [boxes[name] for name in classes], split
        assert counts.images.tolist() == [images[name] for name in classes], split
        assert sum(counts.boxes) == {"train": 470, "val": 382}[split]
        assert columns.is_crowd.sum() == sum(a["iscrowd"] for a in source["annotations"])
        areas = np.array([a["area"] for a in source["annotations"]])
        small, large = (areas < 32**2).sum(), (areas >= 96**2).sum()
        assert size_groups(columns).tolist() == [small, len(areas) - small - large, large]
        per_image = Counter(a["image_id"] for a in source["annotations"])
        wanted = sorted(per_image[image["id"]] for image in source["images"])
        assert sorted(boxes_per_image(columns).tolist()) == wanted
        ratios = sorted(a["bbox"][2] / a["bbox"][3] for a in source["annotations"])
        np.testing.assert_allclose(sorted(aspect_ratios(columns)), ratios, rtol=2e-3)
        records = tf.data.TFRecordDataset(list(numbers.prepared.splits[index].shards))
        raw = [tf.train.Example.FromString(r) for r in records.as_numpy_iterator()]
        files = [r.features.feature["image/filename"].bytes_list.value[0] for r in raw]
        assert columns.names.tolist() == files


def test_samples_show_as_many_classes_as_possible(write_part, drawn_image) -> None:
    def box(*class_ids: int) -> list[tuple[int, int, int, int, int]]:
        return [(class_id, 0, 0, 9, 9) for class_id in class_ids]

    train = [drawn_image("one", box(1)), drawn_image("three", box(1, 2, 3)), drawn_image("none")]
    val = [
        drawn_image("two", box(3, 4)),
        drawn_image("five", box(5)),
        drawn_image("again", box(1, 1, 1)),
    ]
    numbers = read_numbers(str(write_part({"train": train, "val": val}, CLASSES)))
    # The most classes first, then what is new: class 4 or 5, each in one image of val.
    first_three = choose_samples(numbers.columns, 3)
    assert first_three[0] == (0, 1)
    assert set(first_three[1:]) == {(1, 0), (1, 1)}
    everything = choose_samples(numbers.columns, 50)
    assert everything[:3] == first_three
    # All have been seen: train, with fewer samples so far, comes first. No image without boxes.
    assert everything[3:] == [(0, 0), (1, 2)]
    assert choose_samples(numbers.columns, 0) == []


def test_thumbnails_become_as_small_as_they_must(write_part, drawn_image) -> None:
    box = (2, 100, 300, 700, 900)
    drawn_images = [drawn_image("noise", [box], height=900, width=1200, noise=True)]
    numbers = read_numbers(str(write_part({"train": drawn_images}, CLASSES)))
    sizes = {}
    for count in (1, 24, 200):  # images that share the page
        sample = draw_sample(numbers.prepared, numbers.columns, (0, 0), SAMPLE_BYTES // count)
        assert len(sample.jpeg) <= SAMPLE_BYTES // count
        assert (sample.original, sample.classes) == ((900, 1200), ((2, 1),))
        image = decode_rgb(sample.jpeg)
        assert image.shape[:2] == (sample.height, sample.width)
        sizes[count] = image.shape[:2]
    assert sizes[1] == (420, 560)
    assert sizes[1] > sizes[24] > sizes[200] >= (72, 96)


def test_a_box_is_drawn_in_the_colour_of_its_class(write_part, drawn_image) -> None:
    drawn_images = [
        drawn_image("flat", [(2, 20, 50, 80, 150)])
    ]  # narrower than a thumbnail: kept as it is
    numbers = read_numbers(str(write_part({"train": drawn_images}, CLASSES)))
    sample = draw_sample(numbers.prepared, numbers.columns, (0, 0), SAMPLE_BYTES)
    distance = np.abs(decode_rgb(sample.jpeg).astype(int) - class_colour(2)).sum(axis=2)
    lines = np.array([distance[y, 70:130].mean() for y in (20, 80)])
    elsewhere = np.array([distance[y, 70:130].mean() for y in (10, 50, 90)])
    assert lines.max() < 0.5 * elsewhere.min()


def choose_slowly(columns: list[SplitColumns], count: int) -> list[tuple[int, int]]:
    """The rule of `choose_samples` in plain words: one image after another, no bookkeeping."""
    images = [
        (split, row, set(part.class_ids[part.box_images == row].tolist()))
        for split, part in enumerate(columns)
        for row in range(len(part.names))
    ]
    ranks = np.random.default_rng(0).permutation(len(images))
    chosen: list[int] = []
    seen: set[int] = set()
    while len(chosen) < count:
        rest = [n for n in range(len(images)) if n not in chosen and images[n][2]]
        if not rest:
            break
        if not any(images[n][2] - seen for n in rest):
            seen = set()
        of_split = Counter(images[n][0] for n in chosen)
        best = max(
            rest, key=lambda n: (len(images[n][2] - seen), -of_split[images[n][0]], -ranks[n])
        )
        chosen.append(best)
        seen |= images[best][2]
    return [images[n][:2] for n in chosen]


@pytest.mark.parametrize("seed", range(20))
def test_fast_choice_is_the_slow_one(seed) -> None:
    rng = np.random.default_rng(seed)
    columns = []
    for _ in range(3):
        num_images, num_boxes = rng.integers(1, 12), rng.integers(0, 40)
        nothing = np.zeros(num_images)
        columns.append(
            SplitColumns(
                names=nothing,
                contents=nothing,
                sizes=nothing,
                shards=nothing,
                offsets=nothing,
                lengths=nothing,
                box_images=np.sort(rng.integers(0, num_images, num_boxes)),
                class_ids=rng.integers(1, 9, num_boxes).astype(np.int32),
                boxes_normalized=np.zeros((num_boxes, 4)),
                is_crowd=np.zeros(num_boxes),
                areas=np.zeros(num_boxes),
            )
        )
    for count in (3, 60):
        assert choose_samples(columns, count) == choose_slowly(columns, count)
