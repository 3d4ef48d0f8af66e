import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    SequentialSampler,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
    random_split,
)


class Squares(Dataset):
    def __init__(self, n, transform=None):
        self.n, self.transform = n, transform

    def __len__(self):
        return self.n

    def __getitem__(self, idx):
        if torch.is_tensor(idx):
            idx = idx.tolist()
        x = np.full((3,), idx, dtype=np.float32)
        sample = {"x": x, "y": idx**2, "name": f"n{idx}"}
        return self.transform(sample) if self.transform else sample


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(7))


def collate(batch):
    return torch.stack([torch.from_numpy(b["x"]) for b in batch]), torch.tensor([b["y"] for b in batch])


seen = []
for batch in DataLoader(Squares(10), batch_size=4, num_workers=2):
    seen.append(
        (
            batch["x"].sum().item(),
            batch["y"].tolist(),
            batch["name"],
            str(batch["x"].dtype).split(".")[-1],
            str(batch["y"].dtype).split(".")[-1],
        )
    )
custom = [(a.shape[0], b.sum().item()) for a, b in DataLoader(Squares(7), batch_size=3, collate_fn=collate, drop_last=True)]
td = TensorDataset(torch.arange(12).float().reshape(6, 2), torch.arange(6))
tds = [(x, y) for x, y in DataLoader(td, batch_size=4, shuffle=False, pin_memory=False)]
g = torch.Generator().manual_seed(0)
a, b = random_split(td, [4, 2], generator=g)
sizes = (len(a), len(b))
both = sorted(int(y) for part in (a, b) for _, y in part)
shuffled = sorted(
    int(i) for _, y in DataLoader(td, batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(1)) for i in y
)
stream = [t.tolist() for t in DataLoader(Stream(), batch_size=3)]
joined = len(ConcatDataset([td, Subset(td, [0, 2])]))
w = list(WeightedRandomSampler([0.0, 0.0, 1.0], 4))
batches = list(BatchSampler(SequentialSampler(range(5)), 2, False))
loader = DataLoader(td, batch_size=4)
result = dict(
    seen=seen,
    custom=custom,
    tds=tds,
    sizes=sizes,
    both=both,
    shuffled=shuffled,
    stream=stream,
    joined=joined,
    w=w,
    batches=batches,
    n=len(loader),
)
