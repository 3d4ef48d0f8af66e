"""Two layers cut over two workers: the first by columns, the second by rows, so that they need one all-reduce.

python examples/tensor_parallel.py
"""

from pathlib import Path

import gt

gt.gpu_workers(2)
gt.load_config(Path(__file__).parent / "config_sharding.yaml")
gt.manual_seed(0)

with gt.signal("parameters"):
    x = gt.randn(16, 64)
with gt.signal("columns"):
    a = gt.randn(64, 256)
with gt.signal("rows"):
    b = gt.randn(256, 64)

h = (x @ a).relu()  # each worker has its columns
y = h @ b  # each worker has a term of the sum
print("h lies as", h.placement)
print("y lies as", y.placement)
z = y.tanh()  # whoever needs the sum has it added up
print("z lies as", z.placement)
for name, stats in sorted(gt.debug.get_worker_stats().items()):
    print(name, {op: n for op, n in stats["ops"].items() if op in ("all_reduce", "all_gather", "exchange")})
