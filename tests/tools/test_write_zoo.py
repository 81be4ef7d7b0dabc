"""docs/zoo.md says what the configs and the models' sources say; some rows are counted again."""

import shutil
import textwrap
from pathlib import Path

import pytest
from tools.write_zoo import code_alone, count, find_faults, main, read_experiments

from tpudet.trainkit.config.find import find_config, list_configs

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "docs/zoo.md"
EXPERIMENTS = read_experiments(ROOT / "configs/yaml")
# Every kind of backbone and neck, in the smallest model that has it, and the two reference models.
RECOUNTED = (
    *("quickstart", "lite0_fpn_320", "d0_efficientdet_512", "2.2.0_seresnext50_nas_fpn_step_640"),
    *("2.4.1_r50_nas_fpn_separable_cosine_640", "nasfpn_r50_640", "r50_fpn_640"),
)


def written(stem: str) -> list[str]:
    """The cells of a row."""
    rows = [row for row in TABLE.read_text().splitlines() if row.startswith(f"| [{stem}](")]
    assert len(rows) == 1, stem
    return rows[0].strip("| ").split(" | ")


def test_the_table_is_current(capsys: pytest.CaptureFixture[str]) -> None:
    """By digest: the configs and the sources of the models are those that were counted."""
    assert main(["--check", "--output", str(TABLE)]) == 0, capsys.readouterr().err
    paths = list_configs(ROOT / "configs/yaml")
    others = ("base", "classification")
    files = {path.relative_to(ROOT) for path in paths if path.parent.name not in others}
    assert len(files) == len(EXPERIMENTS)
    assert all(f"(../{file})" in TABLE.read_text() for file in files)


@pytest.mark.parametrize("stem", RECOUNTED)
def test_a_row_counted_again_has_the_same_numbers(stem: str) -> None:
    config = next(item.config for item in EXPERIMENTS if Path(item.file).stem == stem)
    assert written(stem)[5:7] == list(count(config))


@pytest.mark.parametrize(
    ("stem", "parameters", "multiply_adds"),
    [
        # arXiv 1911.09070, table 2; automl's readme has 130 billion for d5, 24.9 for d3.
        ("d0_efficientdet_512", 3.9, 2.5),
        ("d1_efficientdet_640", 6.6, 6.1),
        ("d2_efficientdet_768", 8.1, 11.0),
        ("d3_efficientdet_896", 12.0, 25.0),
        ("d4_efficientdet_1024", 20.7, 55.2),  # the readme; 21 and 55 in the paper
        ("d5_efficientdet_1280", 33.7, 135.0),
        ("d6_efficientdet_1280", 52.0, 226.0),
        ("d7_efficientdet_1536", 52.0, 325.0),
    ],
)
def test_published_models_have_their_published_cost(
    stem: str, parameters: float, multiply_adds: float
) -> None:
    found = [float(cell) for cell in written(stem)[5:7]]
    assert found == pytest.approx([parameters, multiply_adds], rel=0.02)


def test_retinanets_have_the_cost_that_tensorflow_tpu_prints() -> None:
    for stem, cost in {"r50_fpn_640": [34.0, 97.0], "nasfpn_r50_640": [60.3, 140.6]}.items():
        found = [float(cell) for cell in written(stem)[5:7]]
        assert found == pytest.approx(cost, rel=0.005)


def test_a_published_figure_stands_beside_not_reproduced_here() -> None:
    figures = {Path(item.file).stem: item.expected for item in EXPERIMENTS if item.expected}
    assert len(figures) >= 14
    assert all(figure.endswith("not reproduced here") for figure in figures.values())
    assert figures["r101_fpn_1024"].startswith("43.9 after 350 epochs (")
    assert "quickstart" not in figures  # a figure of the sample set, not COCO's


def test_what_is_out_of_date_is_named_and_rewritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "configs/yaml/retinanet"
    folder.mkdir(parents=True)
    config = Path(shutil.copy(find_config("quickstart").path, folder))
    monkeypatch.chdir(tmp_path)

    def fault() -> str:
        assert main(["--check"]) == 1
        said = capsys.readouterr().err
        assert "docs/zoo.md is out of date" in said
        assert "`python tools/write_zoo.py` updates it" in said
        return said

    assert "there is no such file" in fault()
    assert main([]) == 0
    assert main(["--check"]) == 0
    capsys.readouterr()

    config.write_text(config.read_text().replace("num_filters: 64", "num_filters: 32"))
    assert "the row of retinanet/quickstart.yaml has changed" in fault()
    assert main([]) == 0
    assert "| FPN 32, levels 3 to 5 | 32 x 2 | 160 x 160 |" in Path("docs/zoo.md").read_text()
    config.write_text(config.read_text().replace("num_scales: 3", "num_scales: 2"))
    assert "the sources of the models have changed since it was counted" in fault()
    shutil.copy(config, folder / "second.yaml")
    assert "retinanet/second.yaml has no row" in fault()
    config.rename(folder / "third.yaml")
    assert "retinanet/quickstart.yaml has a row and does not exist" in fault()


def test_what_is_said_of_code_does_not_date_a_count_and_code_does() -> None:
    code = textwrap.dedent(
        '''
        """A module."""
        WIDTH = 64


        class Layer:
            """A layer."""

            def call(self, width: int = WIDTH) -> int:
                """A call."""
                return 2 * width
        '''
    )
    said = code.replace("A ", "Another\n\n").replace("= 64", "= (\n    64  # pixels\n)")
    assert code_alone(said) == code_alone(code)
    assert "A " not in code_alone(code)
    for old, new in (("64", "65"), ("width: int", "wide: int"), ("2 *", "3 *")):
        assert code_alone(code.replace(old, new)) != code_alone(code)


def test_a_damaged_table_is_out_of_date_and_bad_configs_are_wrong_usage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = TABLE.read_text()
    assert find_faults(text, EXPERIMENTS) == []
    broken = text.replace("| NAS-FPN 256 x 7 | 256 x 4 ", "")
    assert find_faults(broken, EXPERIMENTS) == ["retinanet/nasfpn_r50_640.yaml has no row"]
    renamed = text.replace("# Model zoo", "# Models")
    assert find_faults(renamed, EXPERIMENTS) == ["something beside the rows is different"]
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "configs/yaml"
    folder.mkdir(parents=True)
    assert main(["--check"]) == 2
    assert "holds no experiment" in capsys.readouterr().err
    (folder / "wrong.yaml").write_text("modle: {}\n")
    assert main(["--check"]) == 2
    assert "unknown key modle; did you mean `model`?" in capsys.readouterr().err
