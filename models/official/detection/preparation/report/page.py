"""Writes a self-contained HTML page about a prepared set: numbers, charts and sample images."""

import os
from collections.abc import Sequence

import numpy as np
from tqdm import tqdm

from tpudet.detection.preparation.report.distributions import boxes_section, classes_section
from tpudet.detection.preparation.report.look_alikes import (
    MAX_IMAGES,
    DrawnPair,
    LookAlikes,
    Place,
    first_pairs,
    search_look_alikes,
)
from tpudet.detection.preparation.report.sample_images import (
    SAMPLE_BYTES,
    SampleImage,
    choose_samples,
    draw_sample,
)
from tpudet.detection.preparation.report.sections import (
    coverage_section,
    look_alikes_section,
    options_section,
    repairs_section,
    samples_section,
    splits_table,
)
from tpudet.detection.preparation.report.set_statistics import SetNumbers, read_numbers
from tpudet.trainkit.errors import count_of
from tpudet.trainkit.files.file_kinds import PAGE, file_of_kind, refuse_other_kind
from tpudet.trainkit.pages.html import Content, Html, element, page, section, to_html

STYLE = """
:root { --train: #3f6fe0; --val: #e8832a; --test: #2a9d7c; --other: #8a63c9; }
@media (prefers-color-scheme: dark) {
  :root { --train: #6d96ff; --val: #ffa552; --test: #4fc9a4; --other: #b394ee; } }
.totals td { white-space: nowrap; }
.totals :is(th, td):not(:first-child) { text-align: right; }
.split { white-space: nowrap; }
"""


_FEW_IMAGES = 10  # of a class in train; fewer can hardly be learnt
_NAMES_SHOWN = 3
_SECTIONS = {
    "samples": "Samples",
    "look_alikes": "Look-alikes",
    "classes": "Classes",
    "boxes": "Boxes and images",
    "coverage": "Class coverage",
    "repairs": "Repaired and left out",
    "options": "How it was made",
}


def write_dataset_page(part_dir: str, output: str | None, *, num_samples: int) -> str:
    """Reads a prepared set, checks it against its manifests and writes the page.

    Args:
        part_dir: converted/<part>.
        output: path of the page; None means <part_dir>/report.html.
        num_samples: images in the page, from 0.

    Returns:
        A summary.

    Raises:
        UserError: the set is missing, unfinished or damaged; the page cannot be written, or would
            replace another file.
    """
    output = output or os.path.join(part_dir, "report.html")
    refuse_other_kind(output, PAGE)
    numbers = read_numbers(part_dir)
    places = choose_samples(numbers.columns, num_samples)
    found = search_look_alikes(numbers)
    pairs = first_pairs(found or [])
    max_bytes = SAMPLE_BYTES // max(len(places) + 2 * len(pairs), 1)

    def draw(place: Place) -> SampleImage:
        return draw_sample(numbers.prepared, numbers.columns, place, max_bytes)

    samples = [draw(place) for place in tqdm(places, unit="image", desc="samples")]
    drawn_pairs = [DrawnPair(draw(first), draw(second), value) for first, second, value in pairs]
    with file_of_kind(output, "w", PAGE) as file:
        file.write(build_page(numbers, samples, found, drawn_pairs))
    images = sum(len(columns.names) for columns in numbers.columns)
    return (
        f"{output}: {', '.join(numbers.split_names)}; {images:,} images, "
        f"{numbers.boxes.sum():,} boxes, {len(samples)} sample images. Open it in a browser."
    )


def build_page(
    numbers: SetNumbers,
    samples: Sequence[SampleImage],
    look_alikes: Sequence[LookAlikes] | None,
    pairs: Sequence[DrawnPair],
) -> str:
    """Builds the page; equal arguments give equal text.

    Args:
        numbers: of the set.
        samples: images to show.
        look_alikes: as `search_look_alikes` returns them.
        pairs: some of those, to show; without any the section is left out.
    """
    part = numbers.prepared.part
    titles = {name: _SECTIONS[name] for name in _SECTIONS if pairs or name != "look_alikes"}
    links = [Html(f'<a href="#{name}">{title}</a>') for name, title in titles.items()]
    body = [
        *_head(numbers),
        element("nav", *links),
        section("overview", "Splits", splits_table(numbers)),
        section("known", "Worth knowing", _worth_knowing(numbers, look_alikes)),
        samples_section(numbers, samples),
        *([look_alikes_section(pairs, numbers.prepared.classes)] if pairs else []),
        classes_section(numbers),
        boxes_section(numbers),
        coverage_section(numbers),
        repairs_section(numbers.prepared),
        options_section(numbers.prepared),
        _footer(numbers),
    ]
    return page(f"{part}: prepared set", body, style=STYLE)


def _head(numbers: SetNumbers) -> list[Content]:
    images = sum(len(columns.names) for columns in numbers.columns)
    boxes = int(numbers.boxes.sum())
    facts = {
        "images": images,
        "boxes": boxes,
        "classes": len(numbers.prepared.classes),
        "boxes per image": f"{boxes / images:.2f}",
        "splits": len(numbers.columns),
    }
    tiles = [
        element("div", element("b", value), element("span", name), classes="tile")
        for name, value in facts.items()
    ]
    lead = f"A prepared detection set: {', '.join(numbers.split_names)}."
    return [
        element("h1", numbers.prepared.part),
        element("p", lead, classes="lead"),
        element("div", *tiles, classes="tiles"),
    ]


def _worth_knowing(numbers: SetNumbers, look_alikes: Sequence[LookAlikes] | None) -> Html:
    facts = [
        *_unlearnable(numbers),
        *_repeated(numbers),
        *_renamed(numbers),
        *_alike(numbers, look_alikes),
        *_imbalance(numbers),
        *_faults(numbers),
    ]
    if not facts:
        return element("p", "Nothing stands out.", classes="note")
    return element("ul", *(element("li", fact) for fact in facts), classes="known")


def _unlearnable(numbers: SetNumbers) -> list[str]:
    facts = []
    classes = numbers.prepared.classes
    for name, row in zip(numbers.split_names, numbers.lacking, strict=True):
        if row.any():
            first = ", ".join(classes[index].name for index in np.flatnonzero(row)[:_NAMES_SHOWN])
            more = " and others" if row.sum() > _NAMES_SHOWN else ""
            facts.append(
                f"Of {len(row):,} classes {row.sum():,} lack boxes in {name}: {first}{more}."
            )
        if name == "train":
            images = numbers.counts[numbers.split_names.index(name)].images
            few = int(np.count_nonzero((images > 0) & (images < _FEW_IMAGES)))
            if few:
                what = count_of(few, "class has", "classes have")
                facts.append(f"{what} boxes in 1 to {_FEW_IMAGES - 1} images of train only.")
    return facts


def _repeated(numbers: SetNumbers) -> list[str]:
    facts = []
    names = [set(columns.names.tolist()) for columns in numbers.columns]
    for split, columns, distinct in zip(numbers.split_names, numbers.columns, names, strict=True):
        if len(distinct) < len(columns.names):
            copies = len(columns.names) - len(distinct)
            what = count_of(copies, f"image of {split} is a copy", f"images of {split} are copies")
            facts.append(f"{what} of others in it.")
    for index, split in enumerate(numbers.split_names):
        for other in range(index):
            shared = sorted(names[index] & names[other])
            if shared:
                first = ", ".join(name.decode(errors="replace") for name in shared[:_NAMES_SHOWN])
                facts.append(
                    f"{count_of(len(shared), 'image has', 'images have')} the same name in "
                    f"{numbers.split_names[other]} and {split}, such as {first}."
                )
    return facts


def _renamed(numbers: SetNumbers) -> list[str]:
    """Images whose files are equal byte for byte under different names."""
    facts, seen = [], list[tuple[str, dict[int, bytes]]]()
    for split, columns in zip(numbers.split_names, numbers.columns, strict=True):
        first: dict[int, bytes] = {}
        pairs = list(zip(columns.contents.tolist(), columns.names.tolist(), strict=True))
        for content, name in pairs:
            first.setdefault(content, name)
        for other, names in [*seen, (split, first)]:
            equal = {
                name: names[content] for content, name in pairs if names.get(content, name) != name
            }
            if equal:
                one = next(iter(sorted(equal.items())))
                example = " and ".join(name.decode(errors="replace") for name in one)
                where = f"others of {split}" if other == split else f"images of {other}, a leak"
                what = count_of(
                    len(equal),
                    f"image of {split} is the same file",
                    f"images of {split} are the same files",
                )
                facts.append(f"{what} as {where}, under another name, such as {example}.")
        seen.append((split, first))
    return facts


def _alike(numbers: SetNumbers, look_alikes: Sequence[LookAlikes] | None) -> list[str]:
    if look_alikes is None:
        return [f"Look-alikes were not searched: there are more than {MAX_IMAGES:,} images."]
    facts = []
    for found in look_alikes:
        first, second = (numbers.split_names[n] for n in (found.first_split, found.second_split))
        names = [
            numbers.columns[split].names[rows[0]].decode(errors="replace")
            for split, rows in (
                (found.second_split, found.second_rows),
                (found.first_split, found.first_rows),
            )
        ]
        where = f"others of {second}" if first == second else f"images of {first}, perhaps a leak"
        count = len(found.second_rows)
        what = count_of(count, f"image of {second} looks", f"images of {second} look")
        facts.append(f"{what} like {where}, such as {' and '.join(names)}.")
    return facts


def _imbalance(numbers: SetNumbers) -> list[str]:
    boxes, classes = numbers.boxes, numbers.prepared.classes
    present = np.flatnonzero(boxes)
    if len(present) < 2:
        return []
    most, least = boxes.argmax(), present[boxes[present].argmin()]
    return [
        f"{classes[most].name} has {boxes[most] / boxes[least]:,.0f} times as many boxes as "
        f"{classes[least].name}: {boxes[most]:,} and {boxes[least]:,}."
    ]


def _faults(numbers: SetNumbers) -> list[str]:
    facts = []
    for key, done in (("left_out", "left out"), ("repaired", "repaired")):
        counts = [sum(s.manifest[f"{key}_counts"].values()) for s in numbers.prepared.splits]
        if sum(counts):
            what = count_of(sum(counts), "fault was", "faults were")
            facts.append(f"{what} {done}; the reasons are below.")
    for name in numbers.prepared.unfinished:
        facts.append(f"{name} shows that a split is being written; it is not counted here.")
    return facts


def _footer(numbers: SetNumbers) -> Html:
    names = ", ".join(os.path.basename(split.manifest_path) for split in numbers.prepared.splits)
    text = f"Counted from the TFRecord files, and in agreement with {names}."
    return element("footer", to_html(text))
