"""The parts of a worker that need PyTorch: the engine, its kernels, and the faster forms of programs."""
