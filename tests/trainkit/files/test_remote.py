"""What is asked of a bucket to make, list and walk folders, by a stand-in for its client."""

from collections import Counter
from types import SimpleNamespace

import pytest
import tensorflow as tf

from tpudet.trainkit.files import remote, storage
from tpudet.trainkit.files.preflight import check_storage
from tpudet.trainkit.training.runs import find_model_dirs


class Bucket:
    """gs://b as an account with roles for objects sees it: not the bucket itself."""

    def __init__(self, *names: str, reachable: bool = True) -> None:
        self.names = {f"gs://b/{name}" for name in names}
        self.requests: Counter[str] = Counter()
        self.reachable = reachable

    def _ask(self, what: str, path: str) -> str:
        self.requests[what] += 1
        path = path.rstrip("/")
        if path == "gs://b" or not self.reachable:
            raise tf.errors.PermissionDeniedError(None, None, "HTTP response code 403")
        return path

    def isdir(self, path: str) -> bool:
        try:
            folder = self._ask("isdir", path)
        except tf.errors.OpError:  # as TensorFlow does
            return False
        return any(name.startswith(f"{folder}/") for name in self.names)

    def exists(self, path: str) -> bool:
        return self._ask("exists", path) in self.names or self.isdir(path)

    def stat(self, path: str) -> SimpleNamespace:
        is_file = self._ask("stat", path) in self.names
        if not is_file and not self.isdir(path):
            raise tf.errors.NotFoundError(None, None, path)
        return SimpleNamespace(length=0, mtime_nsec=0, is_directory=not is_file)

    def mkdir(self, path: str) -> None:
        path = self._ask("mkdir", path)
        if self.isdir(path):
            raise tf.errors.AlreadyExistsError(None, None, path)
        self.names.add(f"{path}/")

    def makedirs(self, path: str) -> None:
        if not self.isdir("/".join(path.split("/")[:4])):
            self._ask("makedirs", "gs://b")
        self.mkdir(path)

    def listdir(self, path: str) -> list[str]:
        if not self.isdir(path):
            raise tf.errors.NotFoundError(None, None, f"Could not find directory {path}")
        folder = f"{self._ask('listdir', path)}/"
        below = [name.removeprefix(folder) for name in self.names if name.startswith(folder)]
        parts = [name.partition("/") for name in below if name]
        return list({name + slash for name, slash, _ in parts})


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch):
    def replace(bucket: Bucket) -> Bucket:
        for module in (remote, storage):
            monkeypatch.setattr(module, "gfile", lambda: bucket)
        return bucket

    return replace


def test_the_first_folder_of_a_bucket_is_made_without_a_right_to_look_at_the_bucket(use) -> None:
    bucket = use(Bucket())
    storage.make_folder("gs://b/saved/run/")
    assert bucket.names == {"gs://b/saved/", "gs://b/saved/run/"}
    storage.make_folder("gs://b/saved/run/best")
    storage.make_folder("gs://b")
    assert bucket.requests["mkdir"] == 3
    bucket.requests.clear()
    storage.make_folder("gs://b/saved/run")
    assert bucket.requests == {"isdir": 1}


def test_a_folder_that_another_host_makes_at_the_same_time_is_made(use) -> None:
    bucket = use(Bucket("saved/"))
    unseen, isdir = [True], bucket.isdir
    bucket.isdir = lambda path: False if unseen and unseen.pop() else isdir(path)
    storage.make_folder("gs://b/saved")
    assert bucket.requests["mkdir"] == 1


def test_one_listing_a_folder_tells_files_from_folders(use) -> None:
    shards = [f"converted/coco/val-{k:05d}" for k in range(100)]
    bucket = use(Bucket("saved/", "saved/r-coco/", "saved/r-coco/metrics.jsonl", *shards))
    assert list(storage.walk("gs://b/saved")) == [
        ("gs://b/saved", ["r-coco"], []),
        ("gs://b/saved/r-coco", [], ["metrics.jsonl"]),
    ]
    assert [len(files) for _, _, files in storage.walk("gs://b/converted")] == [0, 100]
    assert bucket.requests.total() == 8  # TensorFlow looks whether each folder is there
    assert list(find_model_dirs("gs://b/saved")) == ["gs://b/saved/r-coco"]
    assert list(find_model_dirs("gs://b/converted")) == []
    assert bucket.requests.total() == 16


def test_a_file_and_a_folder_of_one_name_are_both_found(use) -> None:
    use(Bucket("d/a", "d/a/b", "d//c"))  # the last has an empty name on its way
    assert list(storage.walk("gs://b/d")) == [
        ("gs://b/d", ["a"], ["a"]),
        ("gs://b/d/a", [], ["b"]),
    ]


def test_a_missing_folder_holds_nothing_but_one_that_cannot_be_listed_is_an_error(use) -> None:
    use(Bucket("saved/"))
    assert list(storage.walk("gs://b/none")) == storage.list_names("gs://b/none") == []
    use(Bucket("saved/", reachable=False))
    for call in (storage.list_names, storage.list_kinds, lambda path: list(storage.walk(path))):
        with pytest.raises(PermissionError, match="403"):
            call("gs://b/saved")


def test_an_error_is_not_taken_for_a_missing_file_or_folder(use) -> None:
    use(Bucket("saved/a"))
    kinds = {"saved": (False, True), "saved/a": (True, False), "none": (False, False)}
    for path, kind in kinds.items():
        assert (storage.is_file(f"gs://b/{path}"), storage.is_folder(f"gs://b/{path}")) == kind
    use(Bucket("saved/a", reachable=False))
    for call in (storage.exists, storage.is_file, storage.is_folder):
        with pytest.raises(PermissionError, match="403"):
            call("gs://b/saved")


def test_a_bucket_that_may_not_be_listed_is_told_with_the_role(use) -> None:
    use(Bucket("saved/"))
    with pytest.raises(Exception, match=r"gs://b cannot be listed: .*403") as caught:
        check_storage("gs://b")
    assert "roles/storage.legacyBucketReader as well:" in str(caught.value)


@pytest.mark.parametrize("root", ["local", "ram://kinds"])
def test_files_and_folders_are_told_apart_everywhere(root: str, tmp_path) -> None:
    root = root if "://" in root else str(tmp_path / "kinds")
    for name in ("b/c/2.txt", "b/1.txt", "3.txt"):
        storage.make_folder(f"{root}/{name.rpartition('/')[0]}")
        storage.write_text(f"{root}/{name}", "")
    assert storage.list_kinds(root) == (["b"], ["3.txt"])
    assert storage.list_kinds(f"{root}/none") == ([], [])
    assert list(storage.walk(root)) == [
        (root, ["b"], ["3.txt"]),
        (f"{root}/b", ["c"], ["1.txt"]),
        (f"{root}/b/c", [], ["2.txt"]),
    ]
