"""Loading: datasets, and batches of them that are on the workers before they are asked for."""

from gt.data.dataset import (
    ChainDataset,
    ConcatDataset,
    Dataset,
    IterableDataset,
    StackDataset,
    Subset,
    TensorDataset,
    random_split,
)
from gt.data.loader import DataLoader, default_collate, default_convert, get_worker_info
from gt.data.sampler import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)  # fmt: skip

__all__ = ["BatchSampler", "ConcatDataset", "DataLoader", "Dataset", "IterableDataset", "RandomSampler", "Sampler"]
__all__ += ["SequentialSampler", "Subset", "TensorDataset", "default_collate", "random_split", "SubsetRandomSampler"]
__all__ += ["WeightedRandomSampler"]
__all__ += ["ChainDataset", "DistributedSampler", "StackDataset", "default_convert", "get_worker_info"]
