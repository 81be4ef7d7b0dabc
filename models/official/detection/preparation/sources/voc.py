"""Reads Pascal VOC annotations (one XML file an image) into the one table."""

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple
from xml.etree import ElementTree

import pandas as pd

from tpudet.detection.preparation.sources.annotations import (
    Annotations,
    Finding,
    PreparationError,
    build_annotations,
)
from tpudet.detection.preparation.sources.input_files import (
    list_directory,
    list_images,
    read_bytes,
    read_classes,
    read_image_list,
    stem,
)
from tpudet.trainkit.class_list import ClassEntry

_READERS = 16  # waiting for files, not computing


class _VocImage(NamedTuple):
    file_name: str
    height: float
    width: float
    objects: tuple[tuple[str, float, float, float, float], ...]  # name, y1, x1, y2, x2


def read_voc(
    directory: str,
    *,
    images: str,
    image_list: str | None = None,
    classes: str | None = None,
) -> Annotations:
    """Reads a directory of XML files.

    Coordinates are taken as they stand. VOC's own count pixels from 1 and include the last one, so
    its boxes come out half a pixel off and one pixel small; tools that write VOC XML today mostly
    do not, and then they are exact. Boxes marked `difficult` are ordinary boxes here.

    Args:
        directory: the folder `Annotations`.
        images: the folder of the pictures; an image is found by the XML's own <filename>, else by
            the name of the XML file with any image extension.
        image_list: a file of `ImageSets/Main`; by default every XML file is taken.
        classes: a class list; by default all names in all XML files of the directory, whatever the
            list, in alphabetical order, so that every split gets the same classes.

    Raises:
        PreparationError: a directory or list is missing, or XML does not parse; all broken files
            are counted and the first five named.
    """
    names = list_directory(directory, "--annotations")
    available = [name[:-4] for name in names if name.endswith(".xml")]
    if not available:
        raise PreparationError(f"--annotations {directory} holds no .xml file.")
    wanted = available if image_list is None else [stem(n) for n in read_image_list(image_list)]
    present = set(available)
    needed = [name for name in dict.fromkeys(wanted) if name in present]
    if not needed:
        raise PreparationError(
            f"--annotations {directory} holds none of the {len(wanted)} images of --image_list "
            f"{image_list}, such as {wanted[0]}.xml."
        )
    parsed = _read_all(directory, needed if classes else available)
    files = _find_files(images, needed, parsed)
    return build_annotations(
        images=pd.DataFrame(
            {
                "source_id": needed,
                "file": [files[name] for name in needed],
                "height": [parsed[name].height for name in needed],
                "width": [parsed[name].width for name in needed],
            }
        ),
        boxes=_boxes([parsed[name] for name in needed]),
        classes=read_classes(classes) if classes else _names_found(parsed.values()),
        normalized=False,
        findings=tuple(_list_findings(wanted, files)),
    )


def _list_findings(wanted: Sequence[str], files: Mapping[str, str]) -> Iterator[Finding]:
    """What is odd in the list of images; `files` has those that have an XML file."""
    seen: set[str] = set()
    for name in wanted:
        if name not in files:
            yield Finding(name, "annotation file missing", f"{name}.xml", repaired=False)
        elif name in seen:
            yield Finding(files[name], "image listed twice: taken once", "", repaired=True)
        seen.add(name)


def _boxes(images: Sequence[_VocImage]) -> pd.DataFrame:
    rows = [
        (row, *thing, False, float("nan"))
        for row, image in enumerate(images)
        for thing in image.objects
    ]
    columns = ["image", "label", "y1", "x1", "y2", "x2", "is_crowd", "area"]
    return pd.DataFrame(rows, columns=pd.Index(columns))


def _names_found(images) -> tuple[ClassEntry, ...]:
    names = sorted({thing[0] for image in images for thing in image.objects})
    return tuple(ClassEntry(identifier=name, name=name) for name in names)


def _read_all(directory: str, names: Sequence[str]) -> dict[str, _VocImage]:
    def read(name: str) -> _VocImage | str:
        path = os.path.join(directory, f"{name}.xml")
        try:
            return _parse(read_bytes(path, "annotation file"))
        except (ElementTree.ParseError, ValueError) as error:
            return f"{name}.xml: {error}"

    with ThreadPoolExecutor(_READERS) as pool:
        results = dict(zip(names, pool.map(read, names), strict=True))
    broken = [result for result in results.values() if isinstance(result, str)]
    if broken:
        shown = "\n  ".join(broken[:5])
        raise PreparationError(
            f"--annotations {directory}: {len(broken)} of {len(names)} files cannot be read as "
            f"Pascal VOC XML:\n  {shown}"
        )
    return {name: result for name, result in results.items() if isinstance(result, _VocImage)}


def _parse(content: bytes) -> _VocImage:
    root = ElementTree.fromstring(content)
    if root.tag != "annotation":
        raise PreparationError(f"the outermost element is <{root.tag}>, <annotation> is wanted")
    objects = []
    for thing in root.iter("object"):
        name = (thing.findtext("name") or "").strip()
        box = thing.find("bndbox")
        corners = [_number(box, key) for key in ("ymin", "xmin", "ymax", "xmax")]
        objects.append((name, *corners))
    size = root.find("size")
    height, width = _number(size, "height"), _number(size, "width")
    if not (height > 0 and width > 0):  # some tools write 0 where they do not know
        height = width = float("nan")
    return _VocImage((root.findtext("filename") or "").strip(), height, width, tuple(objects))


def _number(parent: ElementTree.Element | None, key: str) -> float:
    """The number in a child element; NaN, which the box checks report, where there is none."""
    try:
        return float((parent.findtext(key) if parent is not None else None) or "nan")
    except ValueError:
        return float("nan")


def _find_files(
    directory: str, names: Sequence[str], parsed: dict[str, _VocImage]
) -> dict[str, str]:
    present = list_images(directory)
    by_stem: dict[str, str] = {}
    for file in present:
        by_stem.setdefault(stem(file), file)
    known = set(present)
    files = {}
    for name in names:
        declared = os.path.basename(parsed[name].file_name)
        own_name = stem(declared) == name or name not in by_stem
        if declared in known and own_name:
            files[name] = declared
        else:  # many a <filename> is left over from another image: the XML's own name decides
            files[name] = by_stem.get(name, declared or f"{name}.jpg")
    return files
