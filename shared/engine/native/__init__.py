"""The CPU backend in C++, for AVX-512 with bf16 and VNNI, for AVX2, or for NEON. See README.md in the folder above."""
