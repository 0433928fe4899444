// Where codes of 8 bits lie in a panel: as the bytes that products take, or, where all codes of a matrix
// allow it, in fewer bits, to be unpacked on the way. Products are the same, and memory gives fewer bytes: of
// Q5_K and Q6_K codes have 5 and 6 bits, and the levels of MXFP4 and IQ4 are 16 at most.
//
// Of 16 columns, quad q are columns 4 q to 4 q + 3, and a vector is a quad of 16 rows of the matrix. Two
// vectors share one of nibbles, quads q and q + 2, the lower ones first; of SIX_BITS the two upper bits of
// all four quads follow, quad q's from bit 2 q of a byte on.
#pragma once

#include "quantized_rows.h"
#include "tile.h"

namespace penstock {

enum class Storage : int { BYTES = 0, SIX_BITS = 1, LEVELS = 2 };

constexpr int MOST_LEVELS = 16;
constexpr int LEVEL_BYTES = 64;            // the levels' codes, as often as a vector has room for them
constexpr int LONGEST_PACKED_GROUP = 512;  // of which the bytes are on the stack
constexpr int CODE_PREFETCH_BYTES = 8192;  // codes are used up several times as fast as floats

constexpr int bits_in(Storage storage) {
  return storage == Storage::SIX_BITS ? 6 : storage == Storage::LEVELS ? 4 : 8;
}

// A panel's codes, or a group's.
struct StoredCodes {
  const uint8_t* data;
  Storage storage;
  const uint8_t* levels;  // [LEVEL_BYTES]; null but for LEVELS

  StoredCodes behind(int columns) const {
    return {data + static_cast<long>(columns) * PANEL * bits_in(storage) / 8, storage, levels};
  }
};

// The least storage that `count` codes fit in. Of LEVELS, `levels` [MOST_LEVELS] are the codes, ascending,
// and `index_of` [256] says which one a code is.
inline Storage least_storage(const uint8_t* codes, long count, uint8_t* levels, uint8_t* index_of) {
  bool seen[256] = {};
  for (long at = 0; at < count; ++at) seen[codes[at]] = true;
  int num = 0, largest = 0;
  for (int code = 0; code < 256; ++code) {
    if (!seen[code]) continue;
    if (num < MOST_LEVELS) levels[num] = static_cast<uint8_t>(code);
    index_of[code] = static_cast<uint8_t>(num++);
    largest = code;
  }
  std::fill(levels + std::min(num, MOST_LEVELS), levels + MOST_LEVELS, uint8_t{0});
  return num <= MOST_LEVELS ? Storage::LEVELS : largest < 64 ? Storage::SIX_BITS : Storage::BYTES;
}

// Where in a panel the code of column `k` of row `lane` has its nibble: a byte, and a shift in it.
struct NibblePlace {
  long byte;
  int shift;
};
inline NibblePlace nibble_place(Storage storage, int k, int lane) {
  const int quad = k % SHARED_BLOCK / 4, vector = quad % 2 * 2 + lane / LANES;
  const long block = k / SHARED_BLOCK * static_cast<long>(SHARED_BLOCK * PANEL * bits_in(storage) / 8);
  return {block + vector * 64 + lane % LANES * 4 + k % 4, quad / 2 * 4};
}
inline NibblePlace upper_place(int k, int lane) {
  const long block = k / SHARED_BLOCK * static_cast<long>(SHARED_BLOCK * PANEL * 6 / 8);
  return {block + (4 + lane / LANES) * 64 + lane % LANES * 4 + k % 4, k % SHARED_BLOCK / 4 * 2};
}

// Puts what stands for a code, its number or its level's, into a panel of zeros.
inline void put_code(Storage storage, uint8_t* panel, int k, int lane, uint8_t value) {
  const NibblePlace place = nibble_place(storage, k, lane);
  panel[place.byte] |= static_cast<uint8_t>((value & 15) << place.shift);
  if (storage != Storage::SIX_BITS) return;
  const NibblePlace upper = upper_place(k, lane);
  panel[upper.byte] |= static_cast<uint8_t>(value >> 4 << upper.shift);
}

inline uint8_t code_at(const StoredCodes& panel, int k, int lane) {
  const NibblePlace place = nibble_place(panel.storage, k, lane);
  const int nibble = panel.data[place.byte] >> place.shift & 15;
  if (panel.storage == Storage::LEVELS) return panel.levels[nibble];
  const NibblePlace upper = upper_place(k, lane);
  return static_cast<uint8_t>(nibble | (panel.data[upper.byte] >> upper.shift & 3) << 4);
}

// `columns` of a panel, a multiple of 16, as bytes in the order of INT8's.
template <Storage STORAGE>
inline void unpack_codes(const uint8_t* stored, const uint8_t* levels, int columns, uint8_t* bytes) {
  constexpr int BLOCK_BYTES = SHARED_BLOCK * PANEL * bits_in(STORAGE) / 8, QUAD_BYTES = 4 * PANEL;
  const __m512i low_nibbles = _mm512_set1_epi8(0x0f), upper_bits = _mm512_set1_epi8(0x30);
  __m512i table = low_nibbles;
  if constexpr (STORAGE == Storage::LEVELS) table = _mm512_loadu_si512(levels);
  for (int k = 0; k < columns; k += SHARED_BLOCK, stored += BLOCK_BYTES, bytes += SHARED_BLOCK * PANEL) {
#pragma GCC unroll 6
    for (int line = 0; line < BLOCK_BYTES; line += 64)
      _mm_prefetch(reinterpret_cast<const char*>(stored) + CODE_PREFETCH_BYTES + line, _MM_HINT_T0);
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      const __m512i first = _mm512_loadu_si512(stored + 64 * half);
      const __m512i second = _mm512_loadu_si512(stored + 128 + 64 * half);
      __m512i quads[4] = {_mm512_and_si512(first, low_nibbles), _mm512_and_si512(second, low_nibbles),
                          _mm512_and_si512(_mm512_srli_epi16(first, 4), low_nibbles),
                          _mm512_and_si512(_mm512_srli_epi16(second, 4), low_nibbles)};
      if constexpr (STORAGE == Storage::LEVELS) {
#pragma GCC unroll 4
        for (__m512i& quad : quads) quad = _mm512_shuffle_epi8(table, quad);
      } else {
        const __m512i upper = _mm512_loadu_si512(stored + 256 + 64 * half);
        const __m512i uppers[4] = {_mm512_slli_epi32(upper, 4), _mm512_slli_epi32(upper, 2), upper,
                                   _mm512_srli_epi16(upper, 2)};
#pragma GCC unroll 4
        for (int quad = 0; quad < 4; ++quad)
          quads[quad] = _mm512_xor_si512(quads[quad], _mm512_and_si512(uppers[quad], upper_bits));
      }
#pragma GCC unroll 4
      for (int quad = 0; quad < 4; ++quad)
        _mm512_store_si512(bytes + quad * QUAD_BYTES + 64 * half, quads[quad]);
    }
  }
}

}  // namespace penstock
