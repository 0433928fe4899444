"""The GPU backend: Triton kernels, CUDA graphs, fp8. Imported only where an engine runs on a GPU."""
