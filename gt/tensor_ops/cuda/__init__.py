"""The CUDA backend: Triton kernels, for arrays on the host and for torch tensors on the GPU."""
