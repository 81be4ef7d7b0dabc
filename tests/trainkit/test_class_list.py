import time

import pytest

from tpudet.trainkit.class_list import (
    ClassEntry,
    read_class_list,
    read_label_map,
    write_class_list,
)
from tpudet.trainkit.errors import UserError


def test_reading_is_the_inverse_of_writing():
    entries = (ClassEntry("/m/011k07", "Tortoise"), ClassEntry("/m/0x", 'Cup, "small"'))
    text = write_class_list(entries)
    assert text == '/m/011k07,Tortoise\n/m/0x,"Cup, ""small"""\n'
    assert read_class_list(text) == entries


def test_byte_order_mark_blanks_and_windows_line_ends_are_ignored():
    assert read_class_list("\ufeff1, person \r\n2,car\r\n\r\n") == (("1", "person"), ("2", "car"))


def test_all_mistakes_are_listed_with_their_rows():
    text = "a,cat\nb\nc,\na,dog\nd,cat\ne,big,dog\n\nf,fox\n"
    with pytest.raises(ValueError, match="cannot be used") as caught:
        read_class_list(text)
    lines = [line.strip() for line in str(caught.value).splitlines()[1:]]
    assert lines == [
        "row 2: 'b' has no second column (expected `identifier,name`)",
        "row 6: 'e,big,dog' has 3 columns; quote a name that contains a comma",
        "row 7: '' has no second column (expected `identifier,name`)",
        "row 4: identifier 'a' is also in row 1",
        "row 3: the name is empty",
        "row 5: name 'cat' is also in row 1",
    ]


def test_a_line_break_is_mostly_a_quote_that_is_never_closed():
    with pytest.raises(ValueError, match=r"row 1: the name 'cat\\nb,dog' has a line break"):
        read_class_list('a,"cat\nb,dog"\n')


@pytest.mark.parametrize("text", ["", "\n\n"])
def test_an_empty_list_is_refused(text):
    with pytest.raises(ValueError, match="it is empty"):
        read_class_list(text)


def test_a_table_of_boxes_is_no_class_list():
    assert len(read_class_list("".join(f"i{k},n{k}\n" for k in range(21_843)))) == 21_843
    with pytest.raises(UserError, match="more than 500,000 rows. Is it a table of boxes"):
        read_class_list("a,b,c\n" * 500_001)


def test_writing_refuses_what_reading_would():
    with pytest.raises(ValueError, match="identifier 'a' is also in row 1"):
        write_class_list([ClassEntry("a", "cat"), ClassEntry("a", "dog")])


def test_open_images_boxable_classes(data_dir):
    path = data_dir / "openimages" / "class-descriptions-boxable.masum.csv"
    entries = read_class_list(path.read_text())
    assert len(entries) == 601
    assert entries[0].identifier.startswith("/m/")


def test_label_maps_in_the_forms_that_protobuf_allows():
    text = """# item { id: 9 name: 'comment' }
    item: { id: 2 name: "n2" display_name: 'two words' }
    item  :{name:'n1'id:1}item{ id : 3, name : plain }"""
    assert read_label_map(text) == (("n1", "n1"), ("n2", "two words"), ("plain", "plain"))


@pytest.mark.parametrize(
    "text",
    ["item" + " " * 100_000, "item {" + "a" * 100_000 + "}", "item { a" + " " * 100_000 + "}"],
    ids=["blanks", "letters", "blanks after a letter"],
)
def test_a_long_label_map_takes_no_longer_than_its_length(text: str):
    """Looked at from each of its letters, it would take minutes."""
    start = time.process_time()
    with pytest.raises(UserError):
        read_label_map(text)
    assert time.process_time() - start < 1
