"""Files of weights that read other files, hold themselves or grow: refused within 1 GB and 30 s."""

import json
import pickle
import re
import zipfile
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np

PROGRAM = """
import sys
from tpudet.trainkit.weights.read import read_weights
from tpudet.trainkit.weights.stored_weights import WeightsError
for path in sys.argv[1:]:
    try:
        stored = read_weights(path)
        print(path, "read", [stored.tensors[name].nbytes for name in stored.tensors])
    except WeightsError as error:
        print(error)
assert "tensorflow" not in sys.modules  # 800 MB and five seconds by itself
"""
SECRET = b"\x01\x02\x03\x04" * 4


def named(file: h5py.File, *layers: str) -> None:
    """Variables of layers in Keras's numbered layout."""
    for layer in layers:
        variables = file.create_group(f"layers/{layer}/vars")
        variables.attrs["name"] = layer
        variables["0"] = np.zeros((2, 2), "f4")


def external_storage(file: h5py.File, folder: Path) -> None:
    named(file, "dense")
    place = [(str(folder / "secret"), 0, 16)]
    file["layers/dense/vars"].create_dataset("1", (4,), "f4", external=place)


def virtual(file: h5py.File, folder: Path) -> None:
    named(file, "dense")
    layout = h5py.VirtualLayout((4,), "f4")
    layout[:] = h5py.VirtualSource(str(folder / "other.h5"), "x", (4,))
    file["layers/dense/vars"].create_virtual_dataset("1", layout)


def external_link(file: h5py.File, folder: Path) -> None:
    named(file, "dense")
    file["layers/dense/vars/1"] = h5py.ExternalLink(str(folder / "other.h5"), "x")


def linked_group(file: h5py.File, folder: Path) -> None:
    named(file, "dense")
    file["layers/other"] = h5py.ExternalLink(str(folder / "other.h5"), "/")


def soft_link(file: h5py.File, _: Path) -> None:
    named(file, "dense")
    file["layers/dense/vars/1"] = h5py.SoftLink("/layers/dense/vars/0")


def legacy_link(file: h5py.File, folder: Path) -> None:
    file.attrs["layer_names"] = ["dense"]
    file.create_group("dense").attrs["weight_names"] = ["dense/kernel:0"]
    file["dense/dense"] = h5py.ExternalLink(str(folder / "other.h5"), "/")


def group_in_itself(file: h5py.File, _: Path) -> None:
    named(file, "dense")
    file["layers/dense/again"] = file["layers"]


def numbers_that_are_not_there(file: h5py.File, _: Path) -> None:
    named(file, "dense")
    file["layers/dense/vars"].create_dataset("1", (1 << 33,), "f4")


def compressed(file: h5py.File, _: Path) -> None:
    named(file, "dense")
    zeros = file["layers/dense/vars"].create_dataset(
        "1", (1 << 28,), "f4", chunks=(1 << 24,), compression="gzip"
    )
    zeros[: 1 << 24] = 0


def layer_named_again(file: h5py.File, _: Path) -> None:
    """5,000 times a layer with 8,000 times a variable."""
    file.attrs["layer_names"] = np.array([b"dense"] * 5_000, "S5")
    file.create_group("dense").attrs["weight_names"] = np.array([b"k:0"] * 8_000, "S3")
    file["dense/k:0"] = np.zeros(3, "f4")


def variable_named_again(file: h5py.File, _: Path) -> None:
    file.attrs["layer_names"] = ["dense"]
    file.create_group("dense").attrs["weight_names"] = ["k:0", "l:0"]
    file["dense/k:0"] = np.zeros(3, "f4")
    file["dense/l:0"] = file["dense/k:0"]


def variables_of_another(file: h5py.File, _: Path) -> None:
    named(file, "dense")
    file.create_group("layers/other")["vars"] = file["layers/dense/vars"]


def many_that_are_not_there(file: h5py.File, _: Path) -> None:
    named(file, "dense")
    for number in range(1, 100):
        file["layers/dense/vars"].create_dataset(str(number), (1 << 20,), "f4", chunks=(1 << 20,))


HDF5 = {
    layer_named_again: "its /dense/k:0 has a second name",
    variable_named_again: "its /dense/[kl]:0 has a second name",
    variables_of_another: "its /layers/.*/vars has a second name",
    many_that_are_not_there: "bytes would become 415,236,112: the same numbers many times",
    external_storage: "its /layers/dense/vars/1 is stored in another file",
    virtual: "its /layers/dense/vars/1 is stored in another file",
    external_link: "its 1 is a link",
    linked_group: "its other is a link",
    soft_link: "its 1 is a link",
    legacy_link: "its dense is a link",
    group_in_itself: "its /layers.* has a second name or holds itself",
    numbers_that_are_not_there: "0 bytes of its /layers/dense/vars/1 would become 34,359,738,368",
    compressed: "would become 1,073,741,824",
}


def test_hdf5_files_that_lead_elsewhere_or_grow(tmp_path: Path, run_limited: Callable) -> None:
    (tmp_path / "secret").write_bytes(SECRET)
    with h5py.File(tmp_path / "other.h5", "w") as other:
        other["x"] = np.frombuffer(SECRET, "f4")
        other["kernel:0"] = np.frombuffer(SECRET, "f4")
    paths = [tmp_path / f"{build.__name__}.h5" for build in HDF5]
    for build, path in zip(HDF5, paths, strict=True):
        with h5py.File(path, "w") as file:
            build(file, tmp_path)
    said = run_limited("-c", PROGRAM, *map(str, paths))
    assert said.returncode == 0, said.stderr
    for message, path in zip(HDF5.values(), paths, strict=True):
        assert re.search(f"{path}: refused, because .*{message}", said.stderr), said.stderr


def deflated(path: Path, name: str, size: int, byte: bytes, **others: bytes) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for other, content in others.items():
            archive.writestr(other, content)
        with archive.open(name, "w", force_zip64=True) as member:
            for _ in range(size >> 20):
                member.write(byte * (1 << 20))


def shared_lists(depth: int) -> list:
    value: list = []
    for _ in range(depth):
        value = [value] * 10
    return value


def doubled_tuples(depth: int = 40) -> tuple:
    """Each twice in the next: 2^40 steps to hash, compare or print."""
    value: tuple = ()
    for _ in range(depth):
        value = (value, value)
    return value


def hashed_and_printed() -> dict[str, bytes]:
    """Pickles of some 300 bytes that make such tuples keys, or parts of what messages tell."""
    doubled = pickle.dumps(doubled_tuples(), 2)[2:-1]  # of opcodes, without the start and the end
    array = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85C\x01btR"
    dtype = b"cnumpy\ndtype\nX\x02\x00\x00\x00f4\x85R"
    opcodes = {
        "setitem": b"}" + doubled + b"Ns",
        "setitems": b"}(X\x01\x00\x00\x00aN" + doubled + b"Nu",
        "dict": b"(" + doubled + b"Nd",
        "set": b"\x8f(" + doubled + b"\x90",
        "frozenset": b"(" + doubled + b"\x91",
        "call": b"ccollections\nOrderedDict\n]]" + doubled + b"aNaa\x85R",
        "shape": array + b"(K\x01" + doubled + dtype + b"\x89C\x00tb",
        "type": b"cnumpy\ndtype\n" + doubled + b"\x85R",
        "numbers": dtype + doubled + b"b",
        "axes": b"cnumpy.core.numeric\n_frombuffer\n(C\x04aaaa"
        + (dtype + b"K\x01\x85X\x01\x00\x00\x00K" + doubled + b"tR"),
    }
    return {name: b"\x80\x04" + code + b"." for name, code in opcodes.items()}


def test_pickles_that_take_for_ever_to_hash_or_print(tmp_path: Path, run_limited: Callable) -> None:
    paths = []
    for name, content in hashed_and_printed().items():
        paths += [tmp_path / f"{name}.pkl", tmp_path / f"{name}.pt"]
        assert len(content) < 400
        paths[-2].write_bytes(content)
        with zipfile.ZipFile(paths[-1], "w") as archive:
            archive.writestr("a/data.pkl", content)
    said = run_limited("-c", PROGRAM, *map(str, paths))
    assert said.returncode == 0, said.stderr
    of_arrays = {
        "shape": "of shape (a tuple, a tuple)",
        "type": "an array of (a tuple, a tuple)",
        "numbers": "numbers are (a tuple, a tuple)",
        "axes": "axes are (a tuple, a tuple)",
    }
    for path in paths:
        (line,) = re.findall(f"^{path}.*", said.stderr, re.M)
        told = of_arrays.get(path.stem, "it has (a tuple, a tuple) as key of a dictionary")
        if path.suffix == ".pt" and path.stem in of_arrays:
            told = "refused, because it calls `numpy"
        assert told in line
        assert len(line) < 600


def torch_zip(path: Path, *, tensors: int, shape: bytes, strides: bytes) -> None:
    """Tensors over one storage of one number, by opcodes; 2^1000 is number 1 of the memo."""
    content = b"\x80\x02" + pickle.dumps((1 << 1000) - 1, 2)[2:-1] + b"q\x010"
    content += b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000"
    content += b"X\x03\x00\x00\x00cpuK\x01tQq\x000(" + shape + b"tq\x020(" + strides + b"tq\x030}("
    for number in range(tensors):
        name = f"t{number}".encode()
        content += b"X" + len(name).to_bytes(4, "little") + name
        content += b"ctorch._utils\n_rebuild_tensor_v2\n(h\x00K\x00h\x02h\x03tR"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/data.pkl", content + b"u.")
        archive.writestr("a/data/0", bytes(4))


def test_pytorch_and_other_files_that_grow(tmp_path: Path, run_limited: Callable) -> None:
    old_format = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19." + pickle.dumps(1001, 2)
    old_format += pickle.dumps(({"little_endian": True}, 0), 2)
    files = {
        "lists.pth": old_format + pickle.dumps(shared_lists(18), 2) + pickle.dumps([], 2),
        # A value that is kept as number 2**31 of the memo.
        "memo.pth": old_format + b"\x80\x04Nr\xff\xff\xff\x7f." + pickle.dumps([], 2),
        "bytes.pth": old_format + b"\x80\x05\x96" + (1 << 32).to_bytes(8, "little") + b"x.",
        "header.safetensors": (10**8).to_bytes(8, "little") + b"{" + b" " * 100,
        "shape.safetensors": _safetensors({"dtype": "F32", "shape": [1 << 38], "offsets": [0, 4]}),
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    deflated(tmp_path / "lists.pt", "a/data.pkl", 1 << 26, b"]")
    deflated(tmp_path / "zeros.keras", "model.weights.h5", 1 << 31, b"\0", config=b"{}")
    torch_zip(tmp_path / "axes.pt", tensors=1, shape=b"h\x01" * 10**5, strides=b"K\x00" * 10**5)
    size = b"J" + (1 << 24).to_bytes(4, "little")
    torch_zip(tmp_path / "views.pt", tensors=3000, shape=size, strides=b"K\x00")
    array = np.zeros(1 << 20, "u1")
    shared = {"model": {f"t{number}": array for number in range(100)}}
    (tmp_path / "shared.pkl").write_bytes(pickle.dumps(shared, 2))
    messages = {
        "axes.pt": "does not fit its storage",
        "views.pt": "bytes would become 201,326,592,000: the same numbers many times",
        "shared.pkl": "bytes would become 104,857,600: the same numbers",
        "lists.pth": "has more than 1,000,000 entries",
        "memo.pth": "holds no tensor",
        "bytes.pth": "it ends within 4,294,967,296 bytes",
        "header.safetensors": "its header would be 100000000 bytes",
        "shape.safetensors": "is damaged: x",
        "lists.pt": r"of its a/data.pkl would become 67,108,864\. PyTorch and Keras",
        "zeros.keras": "of its model.weights.h5 would become 2,147,483,648",
    }
    said = run_limited("-c", PROGRAM, *(str(tmp_path / name) for name in messages))
    assert said.returncode == 0, said.stderr
    for name, message in messages.items():
        assert re.search(f"{tmp_path / name}.*{message}", said.stderr), said.stderr


def _safetensors(entry: dict) -> bytes:
    header = json.dumps({"x": entry}).encode()
    return len(header).to_bytes(8, "little") + header + b"\0" * 4
