"""The one part that is compiled, where a compiler is there; everything else is in pyproject.toml."""

from setuptools import Extension, setup

setup(ext_modules=[Extension("gt.client._native", ["gt/client/native.c"], optional=True)])
