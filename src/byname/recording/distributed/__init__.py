"""Recording in several processes: their files, gathering at rank 0, parts of distributed tensors."""
