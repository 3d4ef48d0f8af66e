"""Where GT does not do as PyTorch by PyTorch's own samples, and why. The list only becomes shorter: `test_opinfo.py` fails when
an entry here is right."""

from __future__ import annotations

VERSION = "2.13"  # the PyTorch whose entries these are

SPARSE = "GT's tensors are dense; products by sparse matrices are gt.sparse's, and have no gradient for the pattern"
INSIDE = "internal to PyTorch: a hash of a tensor's bits, as uint64, which GT has not"
STRIDED = "PyTorch's gradient of the tensor written into is not 0 where it was overwritten; GT's is"
HALF = "GT has complex64 and complex128: no processor computes with 16-bit complex numbers"
ON_TAPE = "what overwrites all of a variable takes it off the tape, so its gradient is absent instead of 0"
VALUES = "the values of the tensor would have to be read, and the script to wait for them"
NUMBERS = "numbers in the place of tensors are taken as 0-d tensors"
UNBOUND = "a reflected operator called on a number by the class: AttributeError instead of TypeError"
WIDE = "a tensor of more than 64 axes cannot be made at all: ValueError where it is made"
ORDER = "a ValueError is asked for, and another argument that is wrong too is met first"
WORKER = "met by the worker: a RemoteError when the value is read"
OVERFLOW = "a number too large for the dtype becomes inf, or wraps, as NumPy has it"
RANKS = "operands of too few axes raise another type of error"
DERIVED = "PyTorch lacks a derivative that GT has"

PLAIN = {
    "sparse.sampled_addmm": SPARSE,
    "sparse.mm.reduce": SPARSE,
    "to_sparse": SPARSE,
    "hash_tensor": INSIDE,
    "as_strided_scatter": STRIDED,
    "chalf": HALF,
    "zero_": ON_TAPE,
}
REFUSED = {
    "cov": VALUES,
    "multinomial": VALUES,
    "masked_fill": OVERFLOW,
    **dict.fromkeys(("aminmax", "amax", "amin"), WIDE),
    **dict.fromkeys(("nn.functional.multi_margin_loss", "nn.functional.multilabel_margin_loss"), ORDER),
    **dict.fromkeys(("igamma", "igammac", "ormqr", "linalg.cross", "linalg.lstsq", "linalg.lstsq.grad_oriented"), RANKS),
    "nn.functional.hardtanh": WORKER,
    **dict.fromkeys(("__radd__", "__rdiv__", "__rmul__", "__rand__", "__ror__", "__rxor__"), UNBOUND),
    **dict.fromkeys(("special.xlog1py", "special.zeta"), NUMBERS),
    **{f"special.{kind}_polynomial_{letter}": NUMBERS
       for kind in ("chebyshev", "shifted_chebyshev") for letter in "tuvw"},
    **dict.fromkeys(("special.hermite_polynomial_h", "special.hermite_polynomial_he"), NUMBERS),
    **dict.fromkeys(("special.laguerre_polynomial_l", "special.legendre_polynomial_p"), NUMBERS),
}  # fmt: skip
IN_PLACE = {
    **dict.fromkeys(("acosh", "asinh", "atanh"), DERIVED),
    **dict.fromkeys(("as_strided", "as_strided.partial_views"), "as_strided_ is not there: strides are not a tensor's own"),
    "addbmm": "PyTorch's own in-place form gives the sample's broadcast shape",
    "fill": ON_TAPE,
    "zero_": ON_TAPE,
}
OUT: dict[str, str] = {}
DTYPES: dict[str, str] = {}

EXCEPTIONS: dict[str, dict[str, str]] = {
    "plain": PLAIN,
    "refused": REFUSED,
    "in_place": IN_PLACE,
    "out": OUT,
    "dtypes": DTYPES,
}
