"""Strict decoding: every mistake with its place, defaults, base files, overrides."""

import itertools
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal

import pytest

from tpudet.trainkit.config.decode import ConfigError, decode, load_config, parse_tree, to_yaml
from tpudet.trainkit.config.layers import override_tree


@dataclass(frozen=True, kw_only=True)
class Disc:
    kind: Literal["disc"] = "disc"
    radius: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Ring:
    kind: Literal["ring"] = "ring"
    inner: float = 0.5
    outer: float = 1.0

    def __post_init__(self) -> None:
        if self.inner >= self.outer:
            raise ValueError(f"inner must be below outer, got {self.inner} and {self.outer}")


@dataclass(frozen=True, kw_only=True)
class Drawing:
    title: str = ""
    steps: int = 10
    rate: float = 0.1
    clip: float | None = None
    size: tuple[int, int] = (2, 3)
    names: tuple[str, ...] = ()
    mode: Literal["fast", "slow"] = "fast"
    flip: bool = False
    shape: Disc | Ring = field(default_factory=Disc)


def read(text: str) -> Drawing:
    return decode(Drawing, parse_tree(text, "a.yaml"))


def test_all_mistakes_are_listed_with_line_and_suggestion() -> None:
    text = "title: 3\nstep: 5\nsize: [1]\nmode: quick\nclip: x\nshape: {kind: rng}\nrate: .nan\n"
    with pytest.raises(ConfigError) as caught:
        read(text)
    message = str(caught.value)
    assert "7 mistakes" in message
    for part in (
        "a.yaml:1: title must be a string, got 3",
        "a.yaml:2: unknown key step; did you mean `steps`?",
        "a.yaml:3: size must be a list of 2: an integer, an integer, got [1]",
        "a.yaml:4: mode must be one of fast, slow, got 'quick'",
        "a.yaml:5: clip must be a number or null, got 'x'",
        "a.yaml:6: shape.kind must be one of disc, ring; got 'rng'",
        "a.yaml:7: rate must be a number, got nan",
    ):
        assert part in message


def test_a_rule_of_a_dataclass_names_its_place() -> None:
    with pytest.raises(ConfigError, match=r"a.yaml:3: shape: inner must be below outer, got 2.0"):
        read("shape:\n  kind: ring\n  inner: 2\n")


def test_a_broken_rule_names_its_own_line_whatever_is_laid_over(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("title: x\nshape:\n  kind: ring\n  inner: 2\n")
    (tmp_path / "top.yaml").write_text("base: base.yaml\nsteps: 3\nshape: {outer: 1.5}\n")
    top = str(tmp_path / "top.yaml")
    wrong = r":\n  base.yaml:4: shape: inner must be below outer, got 2.0 and 1.5$"
    with pytest.raises(ConfigError, match=wrong):
        load_config(Drawing, top)
    with pytest.raises(ConfigError, match=wrong):
        load_config(Drawing, top, overrides=["title=y", "shape.kind=ring"])
    with pytest.raises(ConfigError, match=r":\n  --set shape.inner=5: shape: inner must be below"):
        load_config(Drawing, top, overrides=["title=y", "shape.inner=5", "rate=2"])


def test_booleans_are_no_numbers_and_true_is_not_one() -> None:
    for text in ("steps: true", "rate: false", "size: [1, true]"):
        with pytest.raises(ConfigError):
            read(text)


def test_duplicate_keys_broken_yaml_and_lists_at_the_top_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"a.yaml:2: `steps` appears twice"):
        read("steps: 1\nsteps: 2\n")
    with pytest.raises(ConfigError, match=r"a.yaml:2: not valid YAML"):
        read("steps: 1\nnames: [a\n")
    with pytest.raises(ConfigError, match="expected a mapping at the top level"):
        read("- 1\n")
    for text in ('names: ["\\uD800"]', '"\\uD800": 1'):
        message = r"a.yaml:2: not valid YAML: the text '\\ud800' cannot be written as UTF-8"
        with pytest.raises(ConfigError, match=message):
            read(f"steps: 1\n{text}\n")


def test_base_file_is_overridden_and_another_kind_drops_its_values(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("steps: 7\nshape: {kind: disc, radius: 3}\nrate: 2\n")
    (tmp_path / "top.yaml").write_text(
        "base: base.yaml\nrate: 1e-2\nshape: {kind: ring, outer: 9}\n"
    )
    drawing = load_config(Drawing, str(tmp_path / "top.yaml"))
    assert drawing == Drawing(steps=7, rate=0.01, shape=Ring(outer=9.0))


def test_base_files_may_not_loop_and_a_missing_one_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("base: b.yaml\n")
    (tmp_path / "b.yaml").write_text("base: a.yaml\n")
    with pytest.raises(ConfigError, match="form a loop"):
        load_config(Drawing, str(tmp_path / "a.yaml"))
    (tmp_path / "c.yaml").write_text("base: nowhere.yaml\n")
    with pytest.raises(ConfigError, match=r"nowhere.yaml \(named by `base:` in .*c.yaml\)"):
        load_config(Drawing, str(tmp_path / "c.yaml"))


def test_overrides_win_in_order_and_name_themselves_in_errors(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("steps: 1\nrate: 1\n")
    drawing = load_config(
        Drawing,
        str(path),
        overrides=["steps=3", "size=[4, 5]", "shape.kind=ring", "shape.outer=7"],
        params_override="{steps: 2, rate: 5e-1}",
    )
    assert drawing == Drawing(steps=3, rate=0.5, size=(4, 5), shape=Ring(outer=7.0))
    with pytest.raises(
        ConfigError, match=r"--set stps=3.*: unknown key stps; did you mean `steps`"
    ):
        load_config(Drawing, str(path), overrides=["stps=3"])
    with pytest.raises(ConfigError, match="expected KEY=VALUE"):
        load_config(Drawing, str(path), overrides=["steps"])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("data/a #b/c", "data/a #b/c"),
        ("a: b/c", "a: b/c"),
        ("'a # b'", "a # b"),
        ("[1, 2]", [1, 2]),
        ("0.5", 0.5),
        ("#2", "#2"),
        ("", None),
    ],
)
def test_an_override_has_no_comment(text: str, value: object) -> None:
    leaf = override_tree([f"key={text}"]).children["key"]
    assert leaf.value == value  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("ending", ["yaml", "yml"])
def test_a_missing_file_of_overrides_is_no_yaml_text(ending: str, tmp_path: Path) -> None:
    top, over = tmp_path / "top.yaml", tmp_path / f"over.{ending}"
    top.write_text("steps: 1\n")
    with pytest.raises(ConfigError, match=f"^--params_override: {over} does not exist$"):
        load_config(Drawing, str(top), params_override=str(over))
    over.write_text("# nothing yet\n")
    assert load_config(Drawing, str(top), params_override=str(over)).steps == 1


def test_yaml_of_a_config_decodes_to_the_same_config() -> None:
    drawing = Drawing(
        title="a: b", rate=1e-7, names=("1", "null"), clip=None, shape=Ring(outer=2.0)
    )
    assert read(to_yaml(drawing)) == drawing


@dataclass(frozen=True, kw_only=True)
class Pencil:
    kind: Literal["pencil", "crayon"] = "pencil"
    width: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Brush:
    kind: Literal["brush"] = "brush"


@dataclass(frozen=True, kw_only=True)
class Box:
    tools: tuple[Pencil | Brush, ...] = ()


def test_a_list_of_alternatives_is_decoded_item_by_item() -> None:
    text = "tools:\n  - {kind: crayon, width: 2}\n  - {kind: brush}\n"
    box = decode(Box, parse_tree(text, "a.yaml"))
    assert box == Box(tools=(Pencil(kind="crayon", width=2.0), Brush()))
    assert decode(Box, parse_tree(to_yaml(box), "b.yaml")) == box


def test_mistakes_inside_a_list_name_item_and_line() -> None:
    text = "tools:\n  - {kind: chisel}\n  - {kind: pencil, width: wide}\n  - 3\n"
    with pytest.raises(ConfigError) as error:
        decode(Box, parse_tree(text, "a.yaml"))
    assert str(error.value).splitlines()[1:] == [
        "  a.yaml:2: tools[0].kind must be one of pencil, crayon, brush; got 'chisel'",
        "  a.yaml:3: tools[1].width must be a number, got 'wide'",
        "  a.yaml:4: tools[2] must be a mapping of keys, got 3",
    ]


@dataclass(frozen=True, kw_only=True)
class Frame:
    ring: Ring = field(default_factory=lambda: Ring(inner=3.0, outer=4.0))
    shape: Disc | Ring = field(default_factory=lambda: Ring(inner=5.0, outer=6.0))
    tool: Pencil | Brush = field(default_factory=lambda: Pencil(kind="crayon", width=7.0))
    extra: Ring | None = None
    needed: Disc | Ring


@dataclass(frozen=True, kw_only=True)
class Wall:
    frame: Frame = field(default_factory=lambda: Frame(needed=Disc(radius=8.0)))


@pytest.mark.parametrize(
    ("text", "frame"),
    [
        ("{ring: {outer: 9}}", Frame(ring=Ring(inner=3.0, outer=9.0), needed=Disc(radius=8.0))),
        ("{shape: {outer: 9}}", Frame(shape=Ring(inner=5.0, outer=9.0), needed=Disc(radius=8.0))),
        ("{shape: {kind: ring}}", Frame(shape=Ring(), needed=Disc(radius=8.0))),
        ("{shape: {kind: disc}}", Frame(shape=Disc(), needed=Disc(radius=8.0))),
        ("{tool: {width: 2}}", Frame(tool=Pencil(kind="crayon", width=2.0), needed=Disc(radius=8))),
        ("{tool: {kind: pencil}}", Frame(tool=Pencil(), needed=Disc(radius=8.0))),
        ("{extra: {outer: 9}}", Frame(extra=Ring(outer=9.0), needed=Disc(radius=8.0))),
        ("{needed: {kind: ring}}", Frame(needed=Ring())),
    ],
)
def test_what_is_not_written_stays_as_the_default_of_the_whole_has_it(
    text: str, frame: Frame
) -> None:
    assert decode(Wall, parse_tree(f"frame: {text}", "a.yaml")).frame == frame


def test_without_a_default_the_kind_must_be_written() -> None:
    wrong = "a.yaml:1: needed.kind must be one of disc, ring; got none"
    with pytest.raises(ConfigError, match=wrong):
        decode(Frame, parse_tree("needed: {radius: 2}", "a.yaml"))
    with pytest.raises(ConfigError, match="a.yaml:1: missing key needed"):
        decode(Frame, parse_tree("ring: {inner: 0}", "a.yaml"))
    with pytest.raises(ConfigError, match="unknown key frame.shape.radius; known keys: kind, inn"):
        decode(Wall, parse_tree("frame: {shape: {radius: 2}}", "a.yaml"))


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_no_override_is_lost_in_whichever_order(tmp_path: Path, order: tuple[int, ...]) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("shape: {kind: disc, radius: 3}\n")
    texts = ["shape.outer=7", "shape.kind=ring", "shape={inner: 2}"]
    drawing = load_config(Drawing, str(path), overrides=[texts[i] for i in order])
    assert drawing.shape == Ring(inner=2.0, outer=7.0)


def test_values_of_the_file_that_an_override_leaves_without_their_kind_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "base.yaml").write_text("shape: {kind: disc, radius: 3}\n")
    (tmp_path / "a.yaml").write_text("base: base.yaml\nshape: {kind: ring, inner: 2, outer: 3}\n")
    path = str(tmp_path / "a.yaml")
    load_config(Drawing, path, overrides=["shape.inner=0.1", "shape.kind=ring"])
    load_config(Drawing, path)  # a file says itself what it makes of its base
    assert caplog.messages == []
    assert load_config(Drawing, path, params_override="shape: {kind: disc}").shape == Disc()
    assert load_config(Drawing, path, overrides=["shape.kind=disc"]).shape == Disc()
    what = "dropped with the change of kind: inner, outer of kind ring (a.yaml:2)"
    assert caplog.messages == [f"--params_override:1: {what}", f"--set shape.kind=disc: {what}"]


@dataclass(frozen=True, kw_only=True)
class Length:
    total_steps: int = 100
    total_epochs: float | None = None


@dataclass(frozen=True, kw_only=True)
class Course:
    train: Length = field(default_factory=Length)


@pytest.mark.parametrize(
    ("base", "top", "overrides", "length"),
    [
        ("{total_epochs: 10}", "{total_steps: 50}", [], Length(total_steps=50)),
        ("{total_steps: 50}", "{total_epochs: 10}", [], Length(total_epochs=10.0)),
        ("{total_epochs: 10}", "{}", ["train.total_steps=3"], Length(total_steps=3)),
        (
            "{total_epochs: 10, total_steps: 7}",  # as in the config.yaml of a run
            "{}",
            [],
            Length(total_epochs=10.0, total_steps=7),
        ),
        ("{total_steps: 7}", "{total_epochs: null}", [], Length(total_steps=7)),
        ("{total_epochs: 10}", "{}", ["train.total_steps=null"], None),  # 10 stays; null is wrong
    ],
)
def test_a_value_takes_the_place_of_the_same_in_another_unit_below_it(
    tmp_path: Path, base: str, top: str, overrides: list[str], length: Length | None
) -> None:
    (tmp_path / "base.yaml").write_text(f"train: {base}\n")
    (tmp_path / "top.yaml").write_text(f"base: base.yaml\ntrain: {top}\n")
    if length is None:
        with pytest.raises(ConfigError, match="total_steps must be an integer, got None"):
            load_config(Course, f"{tmp_path}/top.yaml", overrides=overrides)
        return
    assert load_config(Course, f"{tmp_path}/top.yaml", overrides=overrides).train == length


def test_what_an_override_in_another_unit_replaces_is_noted_and_both_are_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a.yaml").write_text("train: {total_epochs: 10}\n")
    with caplog.at_level("INFO"):
        load_config(Course, f"{tmp_path}/a.yaml", overrides=["train.total_steps=3"])
    assert [(record.levelname, record.message) for record in caplog.records] == [
        (
            "INFO",
            "--set train.total_steps=3: total_steps takes the place of total_epochs 10 (a.yaml:1)",
        )
    ]
    both = ["train.total_epochs=10", "train.total_steps=3"]
    with pytest.raises(ConfigError, match="total_steps and total_epochs are one value; set one of"):
        load_config(Course, f"{tmp_path}/a.yaml", overrides=both)
    replaced = ["train.total_epochs=null", "train.total_steps=3"]
    assert load_config(Course, f"{tmp_path}/a.yaml", overrides=replaced).train.total_steps == 3


@dataclass(frozen=True, kw_only=True)
class Paint:
    SHORT: ClassVar = ("name", "path")
    name: str = ""
    path: str = ""
    coats: int = 1


@dataclass(frozen=True, kw_only=True)
class Shop:
    paint: Paint | None = None
    limits: dict[str, float] | None = None


def test_a_string_stands_for_the_key_that_a_dataclass_names() -> None:
    def shop(text: str) -> Shop:
        return decode(Shop, parse_tree(text, "a.yaml"))

    assert shop("paint: red") == shop("paint: {name: red}") == Shop(paint=Paint(name="red"))
    assert shop("paint: null") == Shop()
    assert shop(to_yaml(shop("paint: red"))) == shop("paint: red")
    with pytest.raises(ConfigError, match="a.yaml:1: paint must be a mapping of keys or null"):
        shop("paint: 3")


def test_keys_are_laid_over_a_string_and_keep_what_it_stands_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("paint: red\n")

    def paint(*overrides: str) -> Paint | None:
        return load_config(Shop, str(path), overrides=overrides).paint

    assert paint("paint.coats=2") == Paint(name="red", coats=2)
    assert paint("paint.name=blue") == Paint(name="blue")
    assert paint("paint.path=can") == Paint(path="can")
    assert paint("paint=blue", "paint.coats=2") == Paint(name="blue", coats=2)
    assert load_config(Shop, str(path), overrides=["limits.dry=1"]).limits == {"dry": 1.0}
    with pytest.raises(ConfigError, match="unknown key paint.coat; did you mean `coats`"):
        paint("paint.coat=2")
    assert caplog.messages == []
    path.write_text("paint: {name: red, coats: 2}\n")
    assert paint("paint=blue") == Paint(name="blue")
    assert caplog.messages == ["--set paint=blue: replaces all of paint: name, coats (a.yaml:1)"]


@pytest.mark.parametrize("number", ["1e400", "-1e400", ".inf", ".nan"])
def test_a_number_beyond_all_floats_is_refused(number: str) -> None:
    with pytest.raises(ConfigError, match="a.yaml:1: limits.dry must be a number"):
        decode(Shop, parse_tree(f"limits: {{dry: {number}}}", "a.yaml"))


def test_a_mapping_of_numbers_is_read_and_written(tmp_path: Path) -> None:
    shop = decode(Shop, parse_tree("limits: {wet: 0.5, dry: 1}", "a.yaml"))
    assert shop.limits == {"wet": 0.5, "dry": 1.0}
    assert decode(Shop, parse_tree(to_yaml(shop), "b.yaml")) == shop
    base = tmp_path / "base.yaml"
    base.write_text(to_yaml(shop))
    assert load_config(Shop, str(base), overrides=["limits=null"]) == Shop()
    assert load_config(Shop, str(base), overrides=["limits={wet: 2}"]).limits == {
        "wet": 2.0,
        "dry": 1.0,
    }
    with pytest.raises(ConfigError, match="a.yaml:2: limits.dry must be a number, got 'x'"):
        decode(Shop, parse_tree("limits:\n  dry: x", "a.yaml"))
    with pytest.raises(ConfigError, match="limits must be a mapping of keys or null, got 3"):
        decode(Shop, parse_tree("limits: 3", "a.yaml"))
