"""The parts that are compiled, where a compiler is there; everything else is in pyproject.toml."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension("gt.client._native", ["gt/client/native.c"], optional=True),
        Extension(
            "gt.worker.engine._philox",
            ["gt/worker/engine/philox.c"],
            extra_compile_args=["-O3", "-fno-math-errno", "-fno-trapping-math"],
            optional=True,
        ),
    ]
)
