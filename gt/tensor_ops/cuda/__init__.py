"""The CUDA backend: Triton kernels, for arrays on the host and for torch tensors that lie on the GPU."""
