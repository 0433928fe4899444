"""The CPU backend in C++: for AVX-512, AVX2 or NEON. README.md in the folder above tells of it."""
