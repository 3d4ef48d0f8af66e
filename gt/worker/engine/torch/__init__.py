"""All that needs PyTorch: the engine, its kernels, and the faster forms of programs."""
