"""The parts that are compiled, where a compiler is there, and the project's links, where it has an address; everything else is
in pyproject.toml."""

import os
import runpy
from pathlib import Path

from setuptools import Extension, setup

ADDRESS = os.environ.get("PROJECT_URL", "").rstrip("/")  # of the repository, once it is public (CONTRIBUTING.md)
PAGES = {"Homepage": "", "Source": "", "Issues": "/issues", "Changelog": "/blob/main/CHANGELOG.md"}

HEADERS = ("pointwise", "rows", "products", "recurrent", "channels")  # of the kernels for small tensors

ROOT = Path(__file__).parent
# Without the package, whose dependencies may be missing.
source_digest = runpy.run_path(str(ROOT / "gt" / "source_digest.py"))["source_digest"]


def extension(name, source, **more):
    """A part in C, which knows the digest of its source."""
    digest = source_digest(ROOT / source)
    return Extension(name, [source], define_macros=[("SOURCE", f'"{digest}"')], optional=True, **more)


setup(
    project_urls={name: ADDRESS + path for name, path in PAGES.items()} if ADDRESS else {},
    ext_modules=[
        extension("gt.client._native", "gt/client/native.c"),
        extension("gt.transport._copies", "gt/transport/copies.c", extra_compile_args=["-pthread"]),
        extension("gt.transport._time_stamps", "gt/transport/time_stamps.c"),
        extension("gt.transport._interrupts", "gt/transport/interrupts.c"),
        extension(
            "gt.worker.engine._philox",
            "gt/worker/engine/philox.c",
            depends=["gt/small/clones.h"],
            # Without contraction of a * b + c to one rounding, which processors differ in: a seed gives the same numbers.
            extra_compile_args=["-O3", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off"],
        ),
        extension(
            "gt.small._small_run",
            "gt/small/small_run.c",
            depends=[f"gt/small/{name}.h" for name in ("clones", *HEADERS)],
            extra_compile_args=["-O3", "-fno-math-errno", "-fno-trapping-math"],
        ),
    ],
)
