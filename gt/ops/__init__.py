"""The op table, filled: import this, and every row is there."""

from gt.ops import contract, create, elementwise, index, movement, random, reduce
from gt.ops.table import TABLE, Kind, Operand, Row, infer, row, rows

__all__ = ["TABLE", "Kind", "Operand", "Row", "infer", "row", "rows"]
__all__ += ["contract", "create", "elementwise", "index", "movement", "random", "reduce"]
