// XXH3-64 with its default secret, fused with a copy; python-xxhash computes the same.
#include "cells.h"

#include <algorithm>
#include <cstring>

#include "vectors.h"

namespace penstock {
namespace {

constexpr long STRIPE_BYTES = 64;
constexpr long STRIPES_PER_BLOCK = 16;
constexpr long MOST_AHEAD_BYTES = 8192;  // as far as reads are foreseen; found best by trying
constexpr uint64_t PRIME32[] = {0x9E3779B1U, 0x85EBCA77U, 0xC2B2AE3DU};
constexpr uint64_t PRIME64[] = {0x9E3779B185EBCA87ULL, 0xC2B2AE3D27D4EB4FULL, 0x165667B19E3779F9ULL,
                                0x85EBCA77C2B2AE63ULL, 0x27D4EB2F165667C5ULL};
constexpr long SECRET_BYTES = 192;
alignas(64) constexpr uint8_t SECRET[SECRET_BYTES] = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c,
    0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f,
    0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
    0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c,
    0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
    0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
    0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d,
    0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64,
    0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
    0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce,
    0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e};

__m512i secret(long at) {
  return _mm512_loadu_si512(SECRET + at);
}

uint64_t secret_word(long at) {
  uint64_t word;
  std::memcpy(&word, SECRET + at, sizeof word);
  return word;
}

__m512i accumulate(__m512i sums, __m512i data, __m512i key) {
  const __m512i keyed = _mm512_xor_si512(data, key);
  const __m512i product = _mm512_mul_epu32(keyed, _mm512_srli_epi64(keyed, 32));
  const __m512i swapped = _mm512_shuffle_epi32(data, _MM_PERM_BADC);
  return _mm512_add_epi64(product, _mm512_add_epi64(sums, swapped));
}

__m512i scramble(__m512i sums) {
  const __m512i mixed =
      _mm512_ternarylogic_epi64(sums, _mm512_srli_epi64(sums, 47), secret(SECRET_BYTES - STRIPE_BYTES), 0x96);
  return _mm512_mullo_epi64(mixed, _mm512_set1_epi64(static_cast<long long>(PRIME32[0])));
}

__m512i first_sums() {
  const uint64_t lanes[] = {PRIME32[2], PRIME64[0], PRIME64[1], PRIME64[2],
                            PRIME64[3], PRIME32[1], PRIME64[4], PRIME32[0]};
  return _mm512_loadu_si512(lanes);
}

uint64_t folded(uint64_t a, uint64_t b) {
  const unsigned __int128 product = static_cast<unsigned __int128>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

uint64_t finished(__m512i sums, long bytes) {
  alignas(64) uint64_t lanes[8];
  _mm512_store_si512(lanes, sums);
  uint64_t hash = static_cast<uint64_t>(bytes) * PRIME64[0];
  for (int lane = 0; lane < 8; lane += 2) {
    const long at = 11 + 8 * lane;
    hash += folded(lanes[lane] ^ secret_word(at), lanes[lane + 1] ^ secret_word(at + 8));
  }
  hash ^= hash >> 37;
  hash *= 0x165667919E3779F9ULL;
  return hash ^ (hash >> 32);
}

enum class Store { NONE, CACHED, STREAMED };

template <Store HOW>
void store(uint8_t* target, __m512i data) {
  if (HOW == Store::CACHED) _mm512_storeu_si512(target, data);
  if (HOW == Store::STREAMED) _mm512_stream_si512(reinterpret_cast<__m512i*>(target), data);
}

template <Store HOW>
uint64_t walk(const CellTable& from, const CellTable& to, long count, long cell_bytes) {
  __m512i sums = first_sums();
  const long last = count * cell_bytes / STRIPE_BYTES - 1;
  const long ahead = std::min(MOST_AHEAD_BYTES, cell_bytes);
  long stripe = 0;
  for (long cell = 0; cell < count; ++cell) {
    const uint8_t* source = from.at(cell, cell_bytes);
    uint8_t* target = HOW == Store::NONE ? nullptr : to.at(cell, cell_bytes);
    // The hardware does not foresee where the next cell lies.
    const uint8_t* next = from.at(std::min(cell + 1, count - 1), cell_bytes);
    for (long at = 0; at < cell_bytes; at += STRIPE_BYTES, ++stripe) {
      const long soon = at + ahead;
      _mm_prefetch(soon < cell_bytes ? source + soon : next + (soon - cell_bytes), _MM_HINT_T0);
      const __m512i data = _mm512_loadu_si512(source + at);
      if constexpr (HOW != Store::NONE) store<HOW>(target + at, data);
      const long in_block = stripe % STRIPES_PER_BLOCK;
      const long key = stripe == last ? SECRET_BYTES - STRIPE_BYTES - 7 : 8 * in_block;
      sums = accumulate(sums, data, secret(key));
      if (in_block == STRIPES_PER_BLOCK - 1 && stripe != last) sums = scramble(sums);
    }
  }
  if (HOW == Store::STREAMED) _mm_sfence();
  return finished(sums, count * cell_bytes);
}

}  // namespace

uint64_t hash_cells(const CellTable& from, long count, long cell_bytes) {
  return walk<Store::NONE>(from, from, count, cell_bytes);
}

uint64_t copy_cells(const CellTable& from, const CellTable& to, long count, long cell_bytes, bool streamed) {
  const bool aligned = reinterpret_cast<uintptr_t>(to.base) % STRIPE_BYTES == 0;
  if (streamed && aligned) return walk<Store::STREAMED>(from, to, count, cell_bytes);
  return walk<Store::CACHED>(from, to, count, cell_bytes);
}

}  // namespace penstock
