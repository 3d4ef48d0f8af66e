"""Products with sparse matrices."""

from __future__ import annotations

import torch


def sparse_matmul(
    rows: torch.Tensor, columns: torch.Tensor, values: torch.Tensor, dense: torch.Tensor, *, n: int
) -> torch.Tensor:
    """PyTorch's own product, which does not check indices: they are checked first. (On one core, 20,000 elements by
    16 columns 1.1 ms against 10 by adding rows up, 200,000 by 64 66 ms against 314.)"""
    m, width = dense.shape
    if values.is_cuda or not values.numel() or not width:
        return dense.new_zeros(n, width).index_add_(0, rows, dense[columns] * values[:, None])
    for places, size in ((rows, n), (columns, m)):
        low, high = torch.aminmax(places)
        if low < 0 or high >= size:
            raise IndexError(f"indices {int(low)} to {int(high)} are out of range for a sparse matrix of shape {(n, m)}")
    # torch.sparse_coo_tensor(..., check_invariants=False) warns in PyTorch 2.11 that nothing is checked
    places = torch.stack((rows, columns))
    matrix = torch.ops.aten._sparse_coo_tensor_with_dims_and_tensors(
        2, 0, (n, m), places, values, dtype=values.dtype, layout=torch.sparse_coo, device=values.device
    )
    return torch.sparse.mm(matrix, dense)
