"""The CPU backend in C++, for AVX-512 with bf16 and VNNI or for AVX2. See README.md in the folder above."""
