"""Read and write image archives."""
