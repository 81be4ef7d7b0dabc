"""The page in a real browser without a network; skipped by name where there is none."""

from tpudet.detection.commands import describe_dataset, make_tfrecords
from tpudet.trainkit.class_list import ClassEntry


def test_blood_cells_in_light_and_dark(data_dir, tmp_path, browse) -> None:
    folder, part = data_dir / "bccd/BCCD", tmp_path / "converted/cells"
    arguments = ["--format", "voc", "--annotations", folder / "Annotations", "--split", "val"]
    arguments += ["--images", folder / "JPEGImages", "--output", part, "--workers", 1]
    arguments += ["--image_list", folder / "ImageSets/Main/val.txt"]
    assert make_tfrecords.main([str(argument) for argument in arguments]) == 0
    assert describe_dataset.main([str(part), "--samples", "12"]) == 0
    page = part / "report.html"
    dom = ""
    for dark in (False, True):
        visit = browse(page, dark=dark)
        dom = visit.dom
        assert visit.console == ""  # the page's policy would report any attempt to load something
        assert visit.data == {"images": 12, "loaded": 12, "overflow": 0}
        assert visit.margin < 40 if dark else visit.margin > 220
    for text in ("1,137", "RBC", "zero-size box", "BloodImage_00338.jpg", "640 × 480"):
        assert text in dom
    assert dom.count("<svg") == 8


def test_a_click_enlarges_a_sample_and_another_or_escape_ends_it(
    write_part, drawn_image, browse
) -> None:
    images = [drawn_image(f"i{n}", [(1, 0, 0, 50, 50)]) for n in range(3)]
    folder = write_part({"train": images}, [ClassEntry("/m/1", "cat")])
    assert describe_dataset.main([str(folder)]) == 0
    script = """
        const image = document.querySelector(".enlarge img");
        const share = () => Math.round(100 * image.getBoundingClientRect().width / innerWidth);
        const escape = new KeyboardEvent("keydown", {key: "Escape"});
        [data.small] = [share()];
        image.click(); data.large = share();
        image.click(); data.again = share();
        image.click(); dispatchEvent(escape); data.escaped = share();
    """
    shown = browse(folder / "report.html", script=script).data
    assert shown["small"] < 40
    assert (shown["large"], shown["again"], shown["escaped"]) == (
        100,
        shown["small"],
        shown["small"],
    )


def test_five_hundred_awkward_classes_on_a_telephone(write_part, drawn_image, browse) -> None:
    classes = [
        ClassEntry(f"/m/{n}", f"<b onclick='x()'>{n}</b> & \"{'long' * 12}\"") for n in range(500)
    ]
    train = [
        drawn_image(
            "<script>document.title = 'taken over'</script>" + "n" * 90, [(n + 1, 0, 0, 50, 50)] * 3
        )
        for n in range(0, 500, 7)
    ]
    folder = write_part({"train": train, "val": train[:9], "test": train[:9]}, classes)
    assert describe_dataset.main([str(folder)]) == 0
    visit = browse(folder / "report.html", width=500)
    dom = visit.dom
    assert visit.console == ""
    assert visit.data == {"images": 24, "loaded": 24, "overflow": 0}
    assert "<title>drawn: prepared set</title>" in dom
    assert dom.count('placeholder="Find a class"') == 2  # the page's own script ran
    assert dom.count("<b onclick") == 0
    assert dom.count("&lt;b onclick") > 1000
