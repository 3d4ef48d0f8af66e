"""Versions, where scripts look for them: `gt.version.cuda` is None, as GPUs are the workers' matter."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("gt")
except PackageNotFoundError:  # run from a checkout that is not installed
    __version__ = "0+unknown"
cuda = hip = xpu = git_version = None
debug = False
