"""Compiles the kernels that merge and rewrite submissions; everything else is in pyproject.toml.

`optional`: where no compiler is found the package installs all the same, and the plain NumPy
statements of the kernels take over.
"""

import sys

from Cython.Build import cythonize
from setuptools import Extension, setup

FOLDER = "models/official/detection/submission/fusion"
# Fused multiply-adds would give other last bits than the plain statement.
FLAGS = [] if sys.platform == "win32" else ["-O3", "-ffp-contract=off"]

extensions = [
    Extension(
        f"detection.submission.fusion.{name}",
        [f"{FOLDER}/{name}.pyx"],
        depends=[
            f"{FOLDER}/{header}.pxd"
            for header in (
                "number_text",
                "label_table",
                "prediction_text",
                "algorithms",
                "workspace",
            )
        ],
        extra_compile_args=FLAGS,
    )
    for name in ("prediction_text", "fuse")
]

modules = cythonize(extensions, include_path=["models/official"], build_dir="build/cython")
for module in modules:
    module.optional = True  # given to Extension above, cythonize would lose it
setup(ext_modules=modules)
