"""GT: eager tensors on a shared pool of devices."""
