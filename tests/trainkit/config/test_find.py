"""A VERSION is one experiment: a file, or a version of the predecessor with what it sets."""

import logging
import os
from pathlib import Path

import pytest

from tpudet.trainkit.config.find import (
    FoundConfig,
    config_folder,
    find_config,
    list_configs,
    load_config_tree,
    packaged_configs,
)
from tpudet.trainkit.config.yaml_tree import Branch, ConfigError, Leaf

VERSIONS = """
4.1.1_b5:
  4.1.1_effnet: []
  4.2.0_effnet_long: [a=2, "b=[{c: 1}]"]
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configs/yaml of the working directory."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "configs/yaml"
    for name in ("old/4.1.1_b5", "old/4.1.10_b5", "old/4.1.1b_b5", "base/basis", "plain"):
        path = folder / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("a: 1\n")
    (folder / "old/versions.yaml").write_text(VERSIONS)
    return folder


def plain(tree: Branch | Leaf) -> object:
    if isinstance(tree, Leaf):
        return tree.value if not tree.trees else [plain(item) for item in tree.trees]
    return {key: plain(value) for key, value in tree.children.items()}


def test_version_is_the_stem_or_its_part_before_the_first_underscore(folder: Path) -> None:
    assert find_config("4.1.1") == FoundConfig(str(folder / "old/4.1.1_b5.yaml"))
    assert find_config("4.1.10_b5").path.endswith("/4.1.10_b5.yaml")
    assert find_config("plain").path.endswith("/plain.yaml")
    assert find_config("basis").path.endswith("/base/basis.yaml")
    assert find_config("some/where.yaml") == FoundConfig("some/where.yaml")


def test_version_of_the_predecessor_is_a_file_with_overrides(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = str(folder / "old/4.1.1_b5.yaml")
    assert find_config("4.1.1_effnet") == FoundConfig(path)
    for name in ("4.2.0", "4.2.0_effnet_long"):
        assert find_config(name) == FoundConfig(path, ("a=2", "b=[{c: 1}]"))
    with caplog.at_level(logging.INFO):
        assert plain(load_config_tree("4.2.0")) == {"a": 2, "b": [{"c": 1}]}
    assert caplog.messages == [f"VERSION 4.2.0: {path} --set 'a=2' --set 'b=[{{c: 1}}]'"]


def test_unknown_version_lists_the_five_nearest(folder: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        find_config("4.2")
    message = str(caught.value)
    assert message.startswith(f"VERSION `4.2` names no file below {folder}. The nearest are 4.2.0,")
    assert message.count(", ") == 4
    assert "basis" not in message
    with pytest.raises(ConfigError, match="there is no experiment below"):
        find_config("4.2", folder / "nothing")


def test_version_of_two_experiments_is_refused(folder: Path) -> None:
    (folder / "plain_2.yaml").write_text("")
    assert find_config("plain").path.endswith("/plain.yaml")
    (folder / "plain_3.yaml").write_text("")
    (folder / "plain.yaml").unlink()
    with pytest.raises(ConfigError, match=r"2 experiments:\n  plain_2 \(plain_2.yaml\)\n  plain_3"):
        find_config("plain")
    with (folder / "old/versions.yaml").open("a") as table:
        table.write("  4.2.0_other: []\n")
    with pytest.raises(ConfigError, match=r"2 experiments:\n  4.2.0_effnet_long .*\n  4.2.0_other"):
        find_config("4.2.0")


@pytest.mark.parametrize("folder_name", [".", "other"])
def test_two_files_of_one_name_are_refused(folder: Path, folder_name: str) -> None:
    other = folder / folder_name / "twin.yaml"
    other.parent.mkdir(exist_ok=True)
    other.write_text("a: 1\n")
    (folder / "old/twin.yaml").write_text("a: 2\n")
    with pytest.raises(ConfigError, match=r"2 experiments:\n  twin \(.*\n  twin \("):
        find_config("twin")


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ("5.0_x:\n  5.0_y: []\n", "versions.yaml:2: there is no file 5.0_x.yaml"),
        ("plain: [1]\n", "versions.yaml:1: expected a mapping, got"),
        ("plain:\n  5.0_y: {a: 1}\n", "versions.yaml:2: 5.0_y must be a list of KEY=VALUE"),
        ("plain:\n  4.2.0_effnet_long: []\n", "versions.yaml:2: 4.2.0_effnet_long is listed twice"),
    ],
)
def test_mistake_in_a_table_of_versions_names_its_line(
    table: str, words: str, folder: Path
) -> None:
    (folder / "versions.yaml").write_text(table)
    with pytest.raises(ConfigError) as caught:
        find_config("4.2.0")
    assert str(caught.value).startswith(words)


@pytest.mark.parametrize(("base", "below"), [("4.1.1", 1), ("4.2.0", 2), ("plain", 1)])
def test_base_may_be_a_version(base: str, below: int, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(f"base: {base}\nown: 5\n")
    tree = plain(load_config_tree("mine.yaml"))
    assert isinstance(tree, dict)
    assert (tree["a"], tree["own"]) == (below, 5)


def test_base_that_names_no_version_says_where_it_is_written(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("a: 1\nbase: plan\n")
    with pytest.raises(ConfigError, match=r"mine.yaml:2: base: VERSION `plan` .* plain,"):
        load_config_tree("mine.yaml")


@pytest.mark.parametrize("text", ["", "# base: quickstart\n", "{}\n"])
def test_a_file_without_keys_is_no_experiment(text: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=f"{path} is empty, .* with `base: quickstart`"):
        load_config_tree(str(path))
    (tmp_path / "top.yaml").write_text("base: mine.yaml\na: 1\n")
    with pytest.raises(ConfigError, match="mine.yaml is empty"):
        load_config_tree(str(tmp_path / "top.yaml"))


def test_configs_of_the_package_serve_where_the_working_directory_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert config_folder() == packaged_configs() / "yaml"
    assert os.path.isfile(find_config("quickstart").path)
    os.makedirs("configs/yaml")
    assert config_folder() == tmp_path / "configs/yaml"
    assert list_configs(config_folder()) == []
