"""Every backend that works here, one test each; the others are skipped with their reason."""

import pytest

from gt.tensor_ops import choice


@pytest.fixture(params=["python", "cpp", "opencl", "cuda"])
def backend(request):
    if reason := choice.process.reason(request.param):
        pytest.skip(f"{request.param}: {reason}")
    return choice.module(request.param)


@pytest.fixture
def cpp():
    if reason := choice.process.reason("cpp"):
        pytest.skip(f"cpp: {reason}")
    return choice.module("cpp")
