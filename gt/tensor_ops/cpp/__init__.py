"""The C++ backend: our own CPU kernels, compiled on first use and called through ctypes."""
