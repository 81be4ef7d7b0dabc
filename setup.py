"""Compiles the kernels that merge and rewrite submissions; everything else is in pyproject.toml.

`optional`: where no compiler is found the package installs all the same, and the plain NumPy
statements of the kernels take over.
"""

import sys
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, find_packages, setup

ROOT = "models/official"
FOLDER = f"{ROOT}/detection/submission/fusion"
# Fused multiply-adds would give other last bits than the plain statement.
FLAGS = [] if sys.platform == "win32" else ["-O3", "-ffp-contract=off"]

extensions = [
    Extension(
        f"tpudet.detection.submission.fusion.{name}",
        [f"{FOLDER}/{name}.pyx"],
        depends=[
            f"{FOLDER}/{header}.pxd"
            for header in (
                "number_text",
                "label_table",
                "mapped_files",
                "prediction_text",
                "algorithms",
                "workspace",
            )
        ],
        extra_compile_args=FLAGS,
    )
    for name in ("prediction_text", "fuse")
]

# Cython and pyright look modules up by folder names, so models/official needs the name tpudet.
link = Path("build/typed/tpudet")
if link.resolve() != Path(ROOT).resolve():  # missing, or of a clone that has been moved
    link.unlink(missing_ok=True)
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(Path("../..", ROOT), target_is_directory=True)
modules = cythonize(extensions, include_path=[str(link.parent)], build_dir="build/cython")
for module in modules:
    module.optional = True  # given to Extension above, cythonize would lose it
# The folder models/official is the package tpudet, and the shipped configs travel in it.
packages = ["tpudet", *(f"tpudet.{name}" for name in find_packages(ROOT)), "tpudet.configs"]
setup(ext_modules=modules, packages=packages)
