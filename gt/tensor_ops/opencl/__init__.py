"""The OpenCL backend: one kernel source, built once for each device and dtype."""
