"""Reads Pascal VOC annotations (one XML file per image) into `Annotations`."""

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple
from xml.etree import ElementTree

import pandas as pd

from tpudet.detection.preparation.sources.annotations import Annotations, Finding, build_annotations
from tpudet.detection.preparation.sources.input_files import (
    list_directory,
    read_image_list,
    stem,
)
from tpudet.trainkit.class_list import ClassEntry, read_classes
from tpudet.trainkit.errors import UserError
from tpudet.trainkit.files.inputs import read_input
from tpudet.trainkit.image_folder import list_image_names

_READERS = 16  # threads, mostly waiting for files


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

    Coordinates are used unchanged. The original VOC files count pixels from 1 and include the last
    one, so their boxes come out half a pixel off and one pixel too small. Most tools that write VOC
    XML today do not, and their boxes are exact. Boxes marked `difficult` are ordinary boxes here.

    Args:
        directory: the folder `Annotations`.
        images: folder of the images; an image is found by <filename> in the XML, else by the name
            of the XML file with any image extension.
        image_list: a file of `ImageSets/Main`; None takes every XML file.
        classes: a class list; None takes all names in all XML files of the directory, regardless of
            the image list, in alphabetical order, so that every split gets the same classes.

    Raises:
        UserError: a directory or list is missing, or XML files cannot be parsed; they are counted
            and the first five named.
    """
    names = list_directory(directory, "--annotations")
    available = [name[:-4] for name in names if name.endswith(".xml")]
    if not available:
        raise UserError(f"--annotations {directory} has no .xml file.")
    wanted = available if image_list is None else [stem(n) for n in read_image_list(image_list)]
    present = set(available)
    needed = [name for name in dict.fromkeys(wanted) if name in present]
    if not needed:
        raise UserError(
            f"--annotations {directory} has none of the {len(wanted)} images of --image_list "
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
    """Yields findings about the image list; `files` has the images with an XML file."""
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
            return _parse(read_input(path, "annotation file"))
        except (ElementTree.ParseError, ValueError) as error:
            return f"{name}.xml: {error}"

    with ThreadPoolExecutor(_READERS) as pool:
        results = dict(zip(names, pool.map(read, names), strict=True))
    broken = [result for result in results.values() if isinstance(result, str)]
    if broken:
        shown = "\n  ".join(broken[:5])
        raise UserError(
            f"--annotations {directory}: {len(broken)} of {len(names)} files cannot be read as "
            f"Pascal VOC XML:\n  {shown}"
        )
    return {name: result for name, result in results.items() if isinstance(result, _VocImage)}


def _parse(content: bytes) -> _VocImage:
    root = ElementTree.fromstring(content)
    if root.tag != "annotation":
        raise UserError(f"the root element is <{root.tag}>, expected <annotation>")
    objects = []
    for thing in root.iter("object"):
        name = (thing.findtext("name") or "").strip()
        box = thing.find("bndbox")
        corners = [_number(box, key) for key in ("ymin", "xmin", "ymax", "xmax")]
        objects.append((name, *corners))
    size = root.find("size")
    height, width = _number(size, "height"), _number(size, "width")
    if not (height > 0 and width > 0):  # some tools write 0 for unknown
        height = width = float("nan")
    return _VocImage((root.findtext("filename") or "").strip(), height, width, tuple(objects))


def _number(parent: ElementTree.Element | None, key: str) -> float:
    """Returns the number in a child element; without one NaN, which the box checks report."""
    try:
        return float((parent.findtext(key) if parent is not None else None) or "nan")
    except ValueError:
        return float("nan")


def _find_files(
    directory: str, names: Sequence[str], parsed: dict[str, _VocImage]
) -> dict[str, str]:
    present = list_image_names(directory)
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
        else:  # <filename> is often left over from another image: the name of the XML decides
            files[name] = by_stem.get(name, declared or f"{name}.jpg")
    return files
