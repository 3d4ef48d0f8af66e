"""Settings that scripts assign under `torch.backends.cudnn`, accepted without effect on a client: workers choose their
libraries."""

enabled, benchmark, deterministic, allow_tf32 = True, False, False, True
benchmark_limit = 10


def is_available() -> bool:
    """False: a script has no device of its own."""
    return False


def version() -> None:
    """None: only workers have the library."""
