"""Code contexts: Jupyter kernels in sandboxes, and what is read from them."""
