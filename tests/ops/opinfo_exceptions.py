"""Where GT does not do as PyTorch by PyTorch's own samples, and why. The list only becomes shorter: `test_opinfo.py` fails when
an entry here is right."""

from __future__ import annotations

VERSION = "2.13"  # the PyTorch whose entries these are
NAMES = 591  # that it has for floats

INSIDE = "internal to PyTorch: a hash of a tensor's bits, as uint64, which GT has not"
STRIDED = "PyTorch's gradient of the tensor written into is not 0 where it was overwritten; GT's is"
HALF = "GT has complex64 and complex128: no processor computes with 16-bit complex numbers"
DERIVED = "PyTorch lacks a derivative that GT has"

PLAIN = {
    "hash_tensor": INSIDE,
    "as_strided_scatter": STRIDED,
    "chalf": HALF,
}
REFUSED: dict[str, str] = {}
IN_PLACE = dict.fromkeys(("acosh", "asinh", "atanh"), DERIVED)
UNWRITTEN = "PyTorch leaves out= as it was where the transform is over one axis; GT writes the result there"
OUT = {
    **dict.fromkeys(("fft.ihfft2", "fft.ihfftn"), UNWRITTEN),
    "hash_tensor": INSIDE,
}
TIES = "which of equal elements comes first is nobody's promise unless stable=True is"
NUMPY = "the NumPy engine refuses an integer that its dtype cannot hold, or one negative power of all, where PyTorch wraps"
REAL = "for real numbers only; GT refuses complex ones with an error"
NARROW = "float16 and bfloat16 are refused with an error"
OVERFLOW = "PyTorch's overflows in float16 (or bfloat16), where GT computes in float32 and rounds the result"
INFINITE = "infinite at poles; PyTorch gives large numbers for int8 and int16 there"
CONVS = [f"nn.functional.conv{kind}{n}d" for kind in ("", "_transpose") for n in (1, 2, 3)]
GAMMAS = [f"polygamma.polygamma_n_{n}" for n in range(5)]
DTYPES = {
    **dict.fromkeys(("argsort", "kthvalue", "sort", "topk"), TIES),
    **dict.fromkeys((*CONVS, "logcumsumexp", "nn.functional.rms_norm"), REAL),
    **dict.fromkeys((*GAMMAS, "special.polygamma.special_polygamma_n_0"), INFINITE),
    **dict.fromkeys(("__rpow__", "index_add"), NUMPY),
    **dict.fromkeys(("nextafter", "complex", "view_as_complex"), NARROW),
    **dict.fromkeys(("matrix_exp", "nn.functional.soft_margin_loss"), OVERFLOW),
    "nn.functional.hinge_embedding_loss": "of bfloat16 on the NumPy engine, which rounds each term at another place",
    "chalf": HALF,
    "hash_tensor": INSIDE,
}

COPIES = "the equation decides which operands PyTorch copies before it saves them; GT's gradient is of the given operands"
SILENT = "PyTorch's gradient reads the numbers written since, without an error; GT's the numbers that the op was given"
SPARSE = "GT's sparse matrices cannot change in place, and are saved otherwise"
WRITES = {
    **dict.fromkeys(("einsum", "tensordot", "stft", "masked.prod", "linalg.pinv"), COPIES),
    **dict.fromkeys(("kron",), SILENT),
    **dict.fromkeys(("sparse.mm.reduce", "to_sparse"), SPARSE),
    "as_strided_scatter": STRIDED,
    "nn.functional.multi_head_attention_forward": "PyTorch refuses with another error: a view that it made of the weight",
    "chalf": HALF,
}

# How many there were; a test holds each form to that, so that a new one is a decision and not an accident.
MOST = {"plain": 3, "refused": 0, "in_place": 3, "out": 3, "dtypes": 28, "writes": 11}

EXCEPTIONS: dict[str, dict[str, str]] = {
    "plain": PLAIN,
    "refused": REFUSED,
    "in_place": IN_PLACE,
    "out": OUT,
    "dtypes": DTYPES,
    "writes": WRITES,
}
