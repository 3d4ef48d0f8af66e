"""The parts that are compiled, where a compiler is there, and the project's links, where it has an address; everything else is
in pyproject.toml."""

import os

from setuptools import Extension, setup

ADDRESS = os.environ.get("PROJECT_URL", "").rstrip("/")  # of the repository, once it is public (CONTRIBUTING.md)
PAGES = {"Homepage": "", "Source": "", "Issues": "/issues", "Changelog": "/blob/main/CHANGELOG.md"}

HEADERS = ("pointwise", "rows", "products", "lstm", "channels")  # of the kernels for small tensors

setup(
    project_urls={name: ADDRESS + path for name, path in PAGES.items()} if ADDRESS else {},
    ext_modules=[
        Extension("gt.client._native", ["gt/client/native.c"], optional=True),
        Extension("gt.transport._copies", ["gt/transport/copies.c"], extra_compile_args=["-pthread"], optional=True),
        Extension("gt.transport._time_stamps", ["gt/transport/time_stamps.c"], optional=True),
        Extension("gt.transport._interrupts", ["gt/transport/interrupts.c"], optional=True),
        Extension(
            "gt.worker.engine._philox",
            ["gt/worker/engine/philox.c"],
            depends=["gt/worker/engine/clones.h"],
            # Without contraction of a * b + c to one rounding, which processors differ in: a seed gives the same numbers on all.
            extra_compile_args=["-O3", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off"],
            optional=True,
        ),
        Extension(
            "gt.worker.engine.small._small_run",
            ["gt/worker/engine/small/small_run.c"],
            depends=[f"gt/worker/engine/{name}.h" for name in ("clones", *(f"small/{n}" for n in HEADERS))],
            extra_compile_args=["-O3", "-fno-math-errno", "-fno-trapping-math"],
            optional=True,
        ),
    ],
)
