"""The parts that are compiled, where a compiler is there; everything else is in pyproject.toml."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension("gt.client._native", ["gt/client/native.c"], optional=True),
        Extension(
            "gt.worker.engine._philox",
            ["gt/worker/engine/philox.c"],
            # Without contraction of a * b + c to one rounding, which processors differ in: a seed gives the same numbers on all.
            extra_compile_args=["-O3", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off"],
            optional=True,
        ),
    ]
)
