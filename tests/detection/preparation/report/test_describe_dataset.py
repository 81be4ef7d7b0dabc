"""The page as a file: what it says, that nothing in it is taken for HTML, and wrong input."""

import json
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tpudet.detection.commands import describe_dataset
from tpudet.trainkit.class_list import ClassEntry
from tpudet.trainkit.records import write_shard

NASTY = (
    ClassEntry("/m/<1>", "<script>alert(1)</script>"),
    ClassEntry("/m/2", "\"quoted\" & 'so' $x_1$"),
    ClassEntry("/m/3", "</style></title><b>bold</b> 猫"),
)


class Page(HTMLParser):
    """Tables as lists of rows of text, and all that could make a browser load something."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tables: dict[str, list[list[list[str]]]] = {}
        self.tags: list[str] = []
        self.references: list[str] = []
        self.section = ""
        self.cell: list[str] | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self.tags.append(tag)
        keys = ("src", "href", "xlink:href", "srcset", "action", "data", "poster")
        self.references += [attributes[key] or "" for key in keys if key in attributes]
        if tag == "section":
            self.section = attributes["id"] or ""
        elif tag == "table":
            self.tables.setdefault(self.section, []).append([])
        elif tag == "tr":
            self.tables[self.section][-1].append([])
        elif tag in ("td", "th"):
            self.cell = []

    def handle_data(self, data: str) -> None:
        if self.cell is not None:
            self.cell.append(data)

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th") and self.cell is not None:
            self.tables[self.section][-1][-1].append("".join(self.cell))
            self.cell = None


def describe(folder: Path, *more: object) -> int:
    return describe_dataset.main([str(argument) for argument in (folder, *more)])


def test_page_says_what_the_manifests_say(sample_part, tmp_path, capsys) -> None:
    output, again = tmp_path / "page.html", tmp_path / "again.html"
    assert describe(sample_part, "--output", output) == 0
    assert "20 images" in capsys.readouterr().out
    text = output.read_text()
    page = Page(text)
    manifests = [
        json.loads((Path(sample_part) / f"{split}_tiny.manifest.json").read_text())
        for split in ("train", "val")
    ]
    rows = page.tables["overview"][0][1:]
    assert [row[:3] for row in rows] == [["train", "16", "16"], ["val", "4", "4"]]
    assert [int(row[4]) for row in rows] == [manifest["boxes"] for manifest in manifests]
    found = {
        row[1].split(" ")[0]: [int(n) for n in row[4:7]] for row in page.tables["classes"][0][1:]
    }
    assert found == {
        name: [
            count,
            manifests[1]["boxes_per_class"][name],
            count + manifests[1]["boxes_per_class"][name],
        ]
        for name, count in manifests[0]["boxes_per_class"].items()
    }
    # Numbers behind the charts: each table adds up to all boxes, the last one to all images.
    boxes = [manifest["boxes"] for manifest in manifests]
    for table, total in zip(page.tables["boxes"], [boxes, boxes, boxes, [16, 4]], strict=True):
        assert [sum(int(row[column]) for row in table[1:]) for column in (1, 2)] == total
    assert page.tags.count("img") == 19  # of 20 images one has no box
    assert describe(sample_part, "--output", again) == 0
    assert again.read_bytes() == output.read_bytes()


def test_names_from_the_data_are_text_and_nothing_else(write_part, drawn_image) -> None:
    boxes = [(1, 0, 0, 40, 40), (1, 10, 10, 60, 60), (2, 5, 5, 50, 90)]
    drawn_images = [drawn_image('<img src=x onerror="alert(2)">', boxes)] * 2
    fault = {"file": "<u>.jpg", "reason": "zero-size <box>", "detail": "a & b"}
    folder = write_part({"train": drawn_images}, NASTY, part="<i>part", left_out=[fault] * 7)
    assert describe(folder) == 0
    page = Page((folder / "report.html").read_text())
    assert [page.tags.count(tag) for tag in ("script", "title", "body", "u")] == [1, 1, 1, 0]
    assert page.tags.count("style") == 1 + page.tags.count("svg") == 9
    assert page.tags.count("img") == 2
    assert all(r.startswith(("data:image/jpeg;base64,", "#")) for r in page.references)
    classes = {row[1]: row[2:5] for row in page.tables["classes"][0][1:]}
    assert classes == {
        f"{entry.name} {entry.identifier}": [images, count, count]
        for entry, images, count in zip(NASTY, "220", "420", strict=True)
    }
    assert [row[1] for row in page.tables["coverage"][0][1:]] == [f"{NASTY[2].name} /m/3"]
    split, reason, count, names = page.tables["repairs"][0][1]
    assert (split, reason, count) == ("train", "zero-size <box>", "7")
    assert names.startswith("<u>.jpg (a & b)")
    assert names.endswith("… and 2 more, listed in the manifest")


def test_page_stays_small_however_many_samples_and_classes(write_part, drawn_image) -> None:
    classes = [ClassEntry(f"/m/{n}", f"A class of some length, number {n}") for n in range(2500)]
    drawn_images = [
        drawn_image(f"image {n}", [(n + 1, 0, 0, 90, 90)], height=300, width=400) for n in range(60)
    ]
    folder = write_part({"train": drawn_images, "val": drawn_images[:5]}, classes)
    assert describe(folder, "--samples", 60) == 0
    text = (folder / "report.html").read_text()
    assert len(text.encode()) < 6_000_000
    page = Page(text)
    assert page.tags.count("img") == 60
    assert len(page.tables["classes"][0]) == 2001
    assert "… and 500 more rows." in text
    assert "5 images have the same name in train and val, such as image 0.jpg" in text


def test_equal_files_under_other_names_are_found_within_and_between_splits(
    write_part, drawn_image
) -> None:
    box, classes = [(1, 0, 0, 40, 40)], [ClassEntry("/m/1", "cat")]

    def drawn(name: str, width: int):  # the width alone decides the file
        return drawn_image(name, box, width=width)

    train = [drawn("a", 100), drawn("b", 110), drawn("again a", 100), drawn("c", 120)]
    folder = write_part({"train": train, "val": [drawn("x", 110), drawn("c", 120)]}, classes)
    assert describe(folder) == 0
    facts = (folder / "report.html").read_text().split('id="known"')[1].split("</section>")[0]
    assert "1 image of train is the same file as others of train, under another name" in facts
    assert "such as again a.jpg and a.jpg." in facts
    assert "1 image of val is the same file as images of train, a leak, under another" in facts
    assert "such as x.jpg and b.jpg." in facts
    assert "1 image has the same name in train and val, such as c.jpg." in facts


def test_images_are_told_apart_by_their_files_not_by_their_numbers(write_part, drawn_image) -> None:
    """Two JSONs that each count their images from 0."""
    box, classes = [(1, 0, 0, 40, 40)], [ClassEntry("/m/1", "cat")]

    def drawn(number: int, file: str, width: int):
        return drawn_image(str(number), box, width=width, file=file)

    train = [drawn(0, "a.jpg", 100), drawn(1, "b.jpg", 110), drawn(2, "c.jpg", 120)]
    val = [drawn(0, "d.jpg", 130), drawn(1, "e.jpg", 140), drawn(2, "b.jpg", 150)]
    assert describe(folder := write_part({"train": train, "val": val}, classes)) == 0
    facts = (folder / "report.html").read_text().split('id="known"')[1].split("</section>")[0]
    assert "1 image has the same name in train and val, such as b.jpg." in facts


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def put_other_records(folder: Path) -> None:
    write_shard(str(folder / SHARD), [b"", b""])
    shards = json.loads((folder / MANIFEST).read_text())["shards"]
    shards[1]["bytes"] = (folder / SHARD).stat().st_size
    edit_manifest(folder, shards=shards)


def edit_manifest(folder: Path, **changes: object) -> None:
    path = folder / "train_drawn.manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


SHARD = "train_drawn-00001-of-00002.tfrecord"
MANIFEST = "train_drawn.manifest.json"
FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "flipped bit": (lambda f: flip_a_bit(f / SHARD), f"{SHARD} is damaged"),
    "cut short": (lambda f: (f / SHARD).write_bytes((f / SHARD).read_bytes()[:-9]), SHARD),
    "other records": (
        put_other_records,
        f"{MANIFEST} have a record that is not a detection record",
    ),
    "no shard": (lambda f: (f / SHARD).unlink(), f"{SHARD} is missing"),
    "no manifest": (lambda f: (f / MANIFEST).unlink(), "not a finished set"),
    "no JSON": (lambda f: (f / MANIFEST).write_text("{"), f"{MANIFEST} is not JSON"),
    "other JSON": (lambda f: (f / MANIFEST).write_text("[1]"), "split, part, images"),
    "other images": (lambda f: edit_manifest(f, images=5), "4 images, not 5"),
    "other boxes": (
        lambda f: edit_manifest(f, boxes_per_class={"class 1": 3, "class 2": 4}),
        "4 boxes of the class class 1, not 3",
    ),
    "no class list": (lambda f: (f / "classes.csv").unlink(), "classes.csv does not exist"),
    "bad class list": (lambda f: (f / "classes.csv").write_text("a\n"), "row 1"),
    "short class list": (
        lambda f: (f / "classes.csv").write_text("/m/1,class 1\n"),
        "train_drawn.manifest.json: there were 2, classes.csv has 1",
    ),
    "other order": (
        lambda f: (f / "classes.csv").write_text("/m/2,class 2\n/m/1,class 1\n"),
        "train_drawn.manifest.json: class 1 was class 1, in classes.csv it is class 2",
    ),
    "other class ids": (
        lambda f: [
            (f / "classes.csv").write_text("/m/1,class 1\n"),
            edit_manifest(f, boxes_per_class={"class 1": 4}),
        ],
        "class ids [2], but classes.csv ends at 1",
    ),
    "split twice": (
        lambda f: (f / "other.manifest.json").write_text((f / MANIFEST).read_text()),
        "both describe the split train",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_damaged_set_is_one_message(fault, write_part, drawn_image, capsys) -> None:
    classes = [ClassEntry("/m/1", "class 1"), ClassEntry("/m/2", "class 2")]
    boxes = [(1, 0, 0, 9, 9), (2, 0, 0, 9, 9)]
    folder = write_part(
        {"train": [drawn_image(str(n), boxes) for n in range(4)]}, classes, num_shards=2
    )
    damage, message = FAULTS[fault]
    damage(folder)
    before = sorted(path.name for path in folder.iterdir())
    assert describe(folder) == 2
    error = capsys.readouterr().err
    assert message in error[error.index("tpudet describe_dataset: ") :]
    assert "Traceback" not in error
    assert sorted(path.name for path in folder.iterdir()) == before


def test_wrong_arguments(write_part, drawn_image, tmp_path, capsys) -> None:
    folder = write_part({"val": [drawn_image("a", [(1, 0, 0, 9, 9)])]}, NASTY)
    for samples in ("-1", "201", "many"):
        with pytest.raises(SystemExit) as ended:
            describe(folder, "--samples", samples)
        assert ended.value.code == 2
        assert f"`{samples}` is not an integer from 0 to 200" in capsys.readouterr().err
    manifest = next(folder.glob("*.manifest.json"))
    for output, message in (
        (tmp_path / "nowhere/page.html", "page.html cannot be written: there is no folder"),
        (manifest, "manifest.json exists and is not a page of tpudet"),
    ):
        with pytest.raises(SystemExit):
            describe(folder, "--output", output)
        assert message in capsys.readouterr().err
    (folder / "report.html").write_text("mine")
    assert describe(folder) == 2
    assert "report.html exists and is not a page of tpudet" in capsys.readouterr().err
    for _ in range(2):
        assert describe(folder, "--output", tmp_path / "page.html", "--samples", 0) == 0
    assert "img" not in Page((tmp_path / "page.html").read_text()).tags


def test_command_tells_a_missing_folder_in_one_line(tmp_path, capsys) -> None:
    nothing = str(tmp_path / "nothing")
    assert describe_dataset.main([nothing]) == 2
    assert capsys.readouterr().err == (
        f"tpudet describe_dataset: PART_DIR {nothing} does not exist.\n"
    )
