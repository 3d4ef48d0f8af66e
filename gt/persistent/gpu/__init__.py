"""Decode on GPUs: static buffers, one CUDA graph for each size of batch, and two sets of kernels (CUDA C++ and Triton)."""
