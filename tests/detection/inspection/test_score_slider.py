"""The slider of the page: what a higher score does to boxes, counts and confusions."""

import re

import cv2
import numpy as np


def test_a_higher_score_hides_false_boxes_and_turns_found_ones_into_missed(
    write_found, write_truth, write_images, draw, tmp_path, browse
) -> None:
    """Two of three cats are found, at 0.9 and 0.5; at 0.6 and 0.4 there is no cat, at 0.7 a dog."""
    left, middle, right = (0.1, 0.1, 0.3, 0.9), (0.4, 0.1, 0.6, 0.9), (0.7, 0.1, 0.9, 0.9)
    top = (0.0, 0.0, 1.0, 0.05)
    found = [(1, 0.9, *left), (2, 0.7, *right), (1, 0.6, *top), (1, 0.5, *middle), (1, 0.4, *top)]
    truth = write_truth(*[("a", "cat", *box) for box in (left, middle, right)])
    folder = tmp_path / "images"
    folder.mkdir()
    noise = np.random.default_rng(0).integers(0, 255, (60, 80, 3), np.uint8)
    cv2.imwrite(str(folder / "a.png"), noise)
    output = tmp_path / "out"
    arguments = ("--images", folder, "--output", output, "--groundtruth", truth)
    assert draw(write_found({"a": found}), *arguments) == 0
    page = output / "index.html"
    for fragment, states, badness in (
        ("", {"found": 2, "false": 3, "missed": 1, "low": 0}, "2.70"),
        ("#score=0.55", {"found": 1, "false": 2, "missed": 2, "low": 1}, "3.30"),
        ("#score=0.95", {"found": 0, "false": 0, "missed": 3, "low": 3}, "3.00"),
    ):
        visit = browse(page, fragment=fragment)
        assert visit.console == ""
        assert {state: visit.dom.count(f'<g class="{state}"') for state in states} == states
        words = f"{states['missed']} missed, {states['false']} false, {states['found']} found"
        assert f"{words}<small> · badness {badness}</small>" in visit.dom
        row = re.search(r"<tr(.*?)><td[^>]*>cat</td><td[^>]*>dog</td>(.*?)</tr>", visit.dom)
        assert row is not None
        assert ("hidden" in row[1]) == (fragment == "#score=0.95")
        assert (">1<" in row[2]) == (fragment != "#score=0.95")
    confusions = page.read_text().split('id="confusions"')[1].split("</section>")[0]
    cells = [re.sub("<[^>]*>", "", c) for c in re.findall(r"<td[^>]*>(.*?)</td>", confusions)]
    assert cells == ["cat", "dog", "1", "0.70"]
