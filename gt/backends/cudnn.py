"""Settings that scripts assign under `torch.backends.cudnn`, taken so that they run. They decide nothing at a client: which
library computes, and how, is the workers' matter."""

enabled, benchmark, deterministic, allow_tf32 = True, False, False, True
benchmark_limit = 10


def is_available() -> bool:
    """False: a script has no device of its own."""
    return False


def version() -> None:
    """None: the library is the workers'."""
