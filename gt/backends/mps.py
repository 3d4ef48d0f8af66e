"""Functions of `torch.backends.mps` that scripts call."""


def is_available() -> bool:
    """False: a script has no device of its own."""
    return False


is_built = is_available
