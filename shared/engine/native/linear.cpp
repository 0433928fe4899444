#include "linear.h"

#include <stdexcept>

#include "matrix_unit_codes.h"
#include "matrix_unit_nibbles.h"
#include "nibble_rows.h"
#include "quantized_tile.h"
#include "superblock_nibbles.h"
#include "superblock_tile.h"

namespace penstock {
namespace {

template <int R, class E>
void multiply_dense(const E* rows, long stride, const E* panel, int k, float* tile) {
  Accumulators<R> acc;
  clear<R>(acc);
  multiply<R>(rows, stride, panel, k, acc);
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
    _mm512_store_ps(tile + r * PANEL, acc[r][0]);
    _mm512_store_ps(tile + r * PANEL + LANES, acc[r][1]);
  }
}

bool in_high_nibble(int k) {  // of the two codes that share a byte
  return k % SHARED_BLOCK >= 8;
}

long odd_lines(long bytes) {
  return ((bytes + 63) / 64 | 1) * 64;
}

// Rows from `first` on, of `columns` each.
QuantizedRows quantized_rows(const Rows& rows, int first, int columns) {
  const long group = static_cast<long>(first) * rows.groups;
  const int8_t* high = rows.row<int8_t>(first);
  const float* offsets = rows.offsets.data() == nullptr ? nullptr : rows.offsets.data() + 2 * group;
  return {high,    high + columns, rows.stride, rows.scales.data() + group, rows.sums.data() + group,
          offsets, rows.groups};
}

}  // namespace

Linear::Linear(Kind kind, int out, int in, int group, bool gated)
    : kind_(kind),
      out_(out),
      in_(in),
      k_(round_up(in, group > 0            ? group
                      : kind == Kind::BF16 ? 2
                                           : 1)),
      panels_((gated ? (out / 2 + LANES - 1) / LANES : (out + PANEL - 1) / PANEL)),
      group_(group),
      gated_(gated) {
  const int bits = kind == Kind::F32 ? 32 : kind == Kind::BF16 ? 16 : kind == Kind::INT4 ? 4 : 8;
  panel_bytes_ = static_cast<long>(k_) * PANEL * bits / 8;
}

void Linear::store_as(Storage storage) {
  storage_ = storage;
  panel_bytes_ = static_cast<long>(k_) * PANEL * bits_in(storage) / 8;
}

Linear::Linear(const void* weight, Kind kind, const float* bias, int out, int in, bool gated)
    : Linear(kind, out, in, 0, gated) {
  const int item = kind == Kind::BF16 ? 2 : 4, step = kind == Kind::BF16 ? 2 : 1;
  weights_ = Buffer<uint8_t>::in_arena(weight_bytes());
  std::memset(weights_.data(), 0, weights_.bytes());
  const auto* source = static_cast<const uint8_t*>(weight);
#pragma omp parallel for
  for (int panel = 0; panel < panels_; ++panel)
    for (int lane = 0; lane < PANEL; ++lane) {
      const int row = source_row(panel, lane);
      if (row < 0) continue;
      for (int k = 0; k < in_; ++k)
        std::memcpy(
            weights_.data() + panel * panel_bytes_ + ((k / step * PANEL + lane) * step + k % step) * item,
            source + (static_cast<long>(row) * in_ + k) * item, item);
    }
  pack_bias(bias);
}

Linear::Linear(Kind kind, const uint8_t* codes, const uint16_t* scales, const uint8_t* zeros,
               const uint16_t* minima, const float* bias, int out, int in, int group, bool gated)
    : Linear(kind, out, in, group, gated) {
  const int groups = k_ / group;
  uint8_t levels[MOST_LEVELS], index_of[256];
  if (kind == Kind::INT8 && group <= LONGEST_PACKED_GROUP)
    store_as(least_storage(codes, static_cast<long>(out) * in, levels, index_of));
  if (storage_ == Storage::LEVELS) {
    levels_ = Buffer<uint8_t>::in_arena(LEVEL_BYTES);
    for (int at = 0; at < LEVEL_BYTES; ++at) levels_.data()[at] = levels[at % MOST_LEVELS];
  }
  weights_ = Buffer<uint8_t>::in_arena(weight_bytes());
  scales_ = Buffer<uint16_t>::in_arena(scale_count());
  if (minima == nullptr)
    zeros_ = Buffer<uint8_t>::in_arena(scale_count());
  else
    minima_ = Buffer<uint16_t>::in_arena(scale_count());
  std::memset(weights_.data(), 0, weights_.bytes());
  std::memset(scales_.data(), 0, scales_.bytes());
  if (zeros_.bytes() > 0) std::memset(zeros_.data(), 0, zeros_.bytes());
  if (minima_.bytes() > 0) std::memset(minima_.data(), 0, minima_.bytes());
#pragma omp parallel for
  for (int panel = 0; panel < panels_; ++panel)
    for (int lane = 0; lane < PANEL; ++lane) {
      const int row = source_row(panel, lane);
      if (row < 0) continue;
      uint8_t* target = weights_.data() + panel * panel_bytes_;
      for (int k = 0; k < in_; ++k) {
        const uint8_t code = codes[static_cast<long>(row) * in_ + k];
        if (kind == Kind::INT4)
          target[code_place(k, lane)] |= in_high_nibble(k) ? code << 4 : code;
        else if (storage_ != Storage::BYTES)
          put_code(storage_, target, k, lane, storage_ == Storage::LEVELS ? index_of[code] : code);
        else
          target[code_place(k, lane)] = code;
      }
      for (int g = 0; g < groups; ++g) {
        const long place = (static_cast<long>(panel) * groups + g) * PANEL + lane;
        const long source = static_cast<long>(row) * groups + g;
        scales_.data()[place] = scales[source];
        if (minima == nullptr)
          zeros_.data()[place] = zeros[source];
        else
          minima_.data()[place] = minima[source];
      }
    }
  pack_bias(bias);
}

Linear::Linear(const uint8_t* codes, const int8_t* steps, const uint8_t* least, const uint16_t* scales,
               const uint16_t* minima, const uint8_t* bits, const float* bias, int out, int in, bool gated)
    : Linear(Kind::SUPER, out, in, NIBBLE_GROUP, gated) {
  panel_bits_ = Buffer<uint8_t>::in_arena(panels_);
  for (int panel = 0; panel < panels_; ++panel) panel_bits_.data()[panel] = bits[source_row(panel, 0)];
  place_superblocks();
  weights_ = Buffer<uint8_t>::in_arena(weight_bytes());
  std::memset(weights_.data(), 0, weights_.bytes());
  const int superblocks = in / SUPER_COLUMNS;
#pragma omp parallel for
  for (int panel = 0; panel < panels_; ++panel)
    for (int lane = 0; lane < PANEL; ++lane) {
      const int row = source_row(panel, lane);
      if (row < 0) continue;
      for (int each = 0; each < superblocks; ++each) {
        const long place = static_cast<long>(row) * superblocks + each;
        const int panel_bits = panel_bits_.data()[panel];
        put_super_row(panel_bits, weights_.data() + panel_place(panel) + each * super_bytes(panel_bits), lane,
                      {scales[place], minima[place], steps + place * STEPS, least + place * SUPER_CHUNKS,
                       codes + place * SUPER_COLUMNS});
      }
    }
  pack_bias(bias);
}

void Linear::place_superblocks() {
  super_places_.assign(1, 0);
  panel_bytes_ = 0;
  for (int panel = 0; panel < panels_; ++panel) {
    const int bits = panel_bits_.data()[panel];
    if (!are_super_bits(bits)) throw std::invalid_argument("there are no K-quants of so many bits");
    const long bytes = static_cast<long>(k_ / SUPER_COLUMNS) * super_bytes(bits);
    super_places_.push_back(super_places_.back() + bytes);
    panel_bytes_ = std::max(panel_bytes_, bytes);
    (bits == 4 ? has_nibbles_ : has_words_) = true;
  }
}

Linear::Linear(const PackedShape& packed)
    : Linear(static_cast<Kind>(packed.kind), packed.out, packed.in, packed.group, packed.gated != 0) {
  const auto storage = static_cast<Storage>(packed.storage);
  const bool packs = storage == Storage::SIX_BITS || storage == Storage::LEVELS;
  if (packs ? kind_ != Kind::INT8 || group_ > LONGEST_PACKED_GROUP : storage != Storage::BYTES)
    throw std::invalid_argument("codes of this kind do not lie in so few bits");
  if (packs) store_as(storage);
  if (kind_ == Kind::SUPER) {
    if (group_ != NIBBLE_GROUP || in_ % SUPER_COLUMNS != 0 || packed.parts[6] == nullptr ||
        packed.bytes[6] != panels_)
      throw std::invalid_argument("K-quants say of each panel how many bits they have");
    panel_bits_ = Buffer<uint8_t>::over(packed.parts[6], panels_);
    place_superblocks();
  }
  const size_t minima = packed.parts[4] == nullptr ? 0 : scale_count();
  const size_t expected[] = {weight_bytes(),
                             2 * scale_count(),
                             scale_count() - minima,
                             packed.parts[3] == nullptr ? 0 : panels_ * PANEL * sizeof(float),
                             2 * minima,
                             storage == Storage::LEVELS ? LEVEL_BYTES : size_t{0},
                             kind_ == Kind::SUPER ? static_cast<size_t>(panels_) : size_t{0}};
  for (int part = 0; part < 7; ++part)
    if (static_cast<size_t>(packed.bytes[part]) != expected[part])
      throw std::invalid_argument("a part is not as long as the shape demands");
  weights_ = Buffer<uint8_t>::over(packed.parts[0], expected[0]);
  scales_ = Buffer<uint16_t>::over(packed.parts[1], scale_count());
  zeros_ = Buffer<uint8_t>::over(packed.parts[2], expected[2]);
  bias_ = Buffer<float>::over(packed.parts[3], expected[3] / sizeof(float));
  minima_ = Buffer<uint16_t>::over(packed.parts[4], minima);
  levels_ = Buffer<uint8_t>::over(packed.parts[5], expected[5]);
}

PackedShape Linear::packed() const {
  return {static_cast<int>(kind_),
          out_,
          in_,
          group_,
          gated_,
          static_cast<int>(storage_),
          {weights_.data(), scales_.data(), zeros_.data(), bias_.data(), minima_.data(), levels_.data(),
           panel_bits_.data()},
          {static_cast<long>(weights_.bytes()), static_cast<long>(scales_.bytes()),
           static_cast<long>(zeros_.bytes()), static_cast<long>(bias_.bytes()),
           static_cast<long>(minima_.bytes()), static_cast<long>(levels_.bytes()),
           static_cast<long>(panel_bits_.bytes())}};
}

long Linear::code_place(int k, int lane) const {
  const int column = kind_ == Kind::INT4 ? k / SHARED_BLOCK * 8 + k % 8 : k;  // of bytes
  return (static_cast<long>(column) / DOT_WIDTH * PANEL + lane) * DOT_WIDTH + column % DOT_WIDTH;
}

int Linear::source_row(int panel, int lane) const {
  if (!gated_) {
    const int row = panel * PANEL + lane;
    return row < out_ ? row : -1;
  }
  const int half = out_ / 2, row = panel * LANES + lane % LANES;
  return row < half ? row + (lane < LANES ? 0 : half) : -1;
}

void Linear::pack_bias(const float* bias) {
  if (bias == nullptr) return;
  bias_ = Buffer<float>::in_arena(static_cast<size_t>(panels_) * PANEL);
  for (int panel = 0; panel < panels_; ++panel)
    for (int lane = 0; lane < PANEL; ++lane) {
      const int row = source_row(panel, lane);
      bias_.data()[panel * PANEL + lane] = row < 0 ? 0.0f : bias[row];
    }
}

void Linear::reserve(Rows& rows, int count) const {
  rows.kind = kind_;
  rows.groups = quantized() ? k_ / group_ : 0;
  rows.wide = widens(count);
  const long wide_bytes = 2L * sizeof(bf16) * round_up(k_, matrix_unit::BF16_STEP);
  rows.nibbles = has_nibbles_;
  rows.words = has_words_;
  rows.bytes = has_words_ && are_super_bytes(count);
  rows.superblocks = has_words_ ? k_ / SUPER_COLUMNS : 0;
  rows.words_place = round_up(static_cast<int>(rows.wide ? wide_place() + wide_bytes : row_bytes()), 64);
  rows.stride = odd_lines(rows.words  ? rows.words_place + super_row_bytes(k_)
                          : rows.wide ? wide_place() + wide_bytes
                                      : row_bytes());
  const size_t read = rows.wide ? round_up(count, MAX_TILE_ROWS) : count;
  rows.data.reserve(read * rows.stride);
  rows.scales.reserve(static_cast<size_t>(count) * rows.groups);
  rows.sums.reserve(static_cast<size_t>(count) * rows.groups);
  rows.units.reserve(static_cast<size_t>(count) * rows.superblocks);
  if (kind_ == Kind::INT4 || has_nibbles_) rows.offsets.reserve(2 * static_cast<size_t>(count) * rows.groups);
}

bool Linear::widens(int count) const {
  return WHOLE_VECTORS && matrix_unit::enabled() && kind_ == Kind::INT4 && group_ <= matrix_unit::BF16_STEP &&
         count >= matrix_unit::LEAST_NIBBLE_ROWS;
}

long Linear::row_bytes() const {
  const long columns = k_;
  if (kind_ == Kind::SUPER && !has_nibbles_) return 0;
  if (WORD_PRODUCTS && kind_ != Kind::F32) return columns * 2;  // of bf16, too
  switch (kind_) {
    case Kind::F32:
      return columns * 4;
    case Kind::INT4:
    case Kind::SUPER:
      return columns + columns / 2;
    case Kind::INT8_COARSE:
      return columns;
    default:
      return columns * 2;
  }
}

void Linear::prepare(const float* row, Rows& rows, int index) const {
  if (kind_ == Kind::F32) {
    std::memcpy(rows.row<float>(index), row, in_ * sizeof(float));
    return;
  }
  if (kind_ == Kind::BF16) {
    bf16* target = rows.row<bf16>(index);
    for (int k = 0; k < k_; k += LANES) {
      const __m512 values = _mm512_maskz_loadu_ps(first_lanes(in_ - k), row + k);
      _mm256_mask_storeu_epi16(target + k, first_lanes(k_ - k), narrow(values));
    }
    return;
  }
  if (kind_ == Kind::SUPER) {
    if (has_words_)
      round_super_row(row, k_, rows.bytes,
                      reinterpret_cast<int16_t*>(rows.row<uint8_t>(index) + rows.words_place),
                      rows.units.data() + static_cast<long>(index) * rows.superblocks);
    if (!has_nibbles_) return;
  }
  const Kind kind = kind_ == Kind::SUPER ? Kind::INT4 : kind_;
#ifdef PENSTOCK_WORD_PRODUCTS
  static thread_local Buffer<int8_t> bytes;
  bytes.reserve(2 * static_cast<size_t>(k_));
  round(row, kind, rows, index, bytes.data());
  auto* words = rows.row<int16_t>(index);
  if (kind == Kind::INT4)
    join_bytes<Kind::INT4>(bytes.data(), k_, words);
  else if (kind == Kind::INT8)
    join_bytes<Kind::INT8>(bytes.data(), k_, words);
  else
    join_bytes<Kind::INT8_COARSE>(bytes.data(), k_, words);
#else
  round(row, kind, rows, index, rows.row<int8_t>(index));
#endif
}

void Linear::round(const float* row, Kind kind, Rows& rows, int index, int8_t* codes) const {
#ifdef __AVX512F__
  if (kind == Kind::INT4 && group_ % ROUNDED_COLUMNS == 0) {
    const long place = static_cast<long>(index) * rows.groups;
    return round_nibble_row(row, in_, group_, rows.groups,
                            {codes, codes + k_, rows.scales.data() + place, rows.sums.data() + place,
                             rows.offsets.data() + 2 * place,
                             rows.wide ? reinterpret_cast<bf16*>(codes + wide_place()) : nullptr});
  }
#endif
  const float steps = kind == Kind::INT4 ? SHARED_STEPS : kind == Kind::INT8 ? FINE_STEPS : COARSE_STEPS;
  for (int g = 0; g < rows.groups; ++g) {
    const int first = g * group_, count = std::min(group_, in_ - first);
    const float* values = row + first;
    const float unit = unit_of(values, count, steps);
    const long place = static_cast<long>(index) * rows.groups + g;
    rows.scales.data()[place] = unit;
    int& sum = rows.sums.data()[place];
    if (kind == Kind::INT4)
      sum = round_shared(values, count, group_, unit, codes + first, codes + k_ + first / 2);
    else if (kind == Kind::INT8)
      sum = round_fine(values, count, group_, unit, codes + first, codes + k_ + first);
    else
      sum = round_coarse(values, count, group_, unit, codes + first);
    if (kind != Kind::INT4) continue;
    rows.offsets.data()[2 * place] = static_cast<float>(sum);
    rows.offsets.data()[2 * place + 1] = unit * static_cast<float>(sum);
  }
#ifdef __AVX512BF16__
  if (rows.wide) matrix_unit::widen_row(codes, codes + k_, k_, reinterpret_cast<bf16*>(codes + wide_place()));
#endif
}

void Linear::column(int index, float* row) const {
  const int panel = index / PANEL, lane = index % PANEL;
  const uint8_t* packed = weights_.data() + panel_place(panel);
  for (int k = 0; k < in_; ++k) {
    if (kind_ == Kind::F32) {
      row[k] = reinterpret_cast<const float*>(packed)[k * PANEL + lane];
    } else if (kind_ == Kind::BF16) {
      row[k] = to_float(reinterpret_cast<const bf16*>(packed)[(k / 2 * PANEL + lane) * 2 + k % 2]);
    } else if (kind_ == Kind::SUPER) {
      const int bits = panel_bits_.data()[panel];
      row[k] = super_weight(bits, packed + k / SUPER_COLUMNS * super_bytes(bits), lane, k % SUPER_COLUMNS);
    } else {
      int code;
      if (storage_ != Storage::BYTES) {
        code = code_at({packed, storage_, levels_.data()}, k, lane);
      } else {
        const uint8_t stored = packed[code_place(k, lane)];
        code = kind_ != Kind::INT4 ? stored : in_high_nibble(k) ? stored >> 4 : stored & 15;
      }
      const long place = (static_cast<long>(panel) * (k_ / group_) + k / group_) * PANEL + lane;
      const float scale = _cvtsh_ss(scales_.data()[place]);
      if (minima_.data() == nullptr)
        row[k] = static_cast<float>(code - zeros_.data()[place]) * scale;
      else
        row[k] = static_cast<float>(code) * scale + _cvtsh_ss(minima_.data()[place]);
    }
  }
}

StoredCodes Linear::codes_of(int panel, bool many) const {
  const StoredCodes stored{weights_.data() + panel_place(panel), storage_, levels_.data()};
  if (storage_ == Storage::BYTES || !many) return stored;
  static thread_local Buffer<uint8_t> bytes;
  bytes.reserve(static_cast<size_t>(k_) * PANEL);
  if (storage_ == Storage::SIX_BITS)
    unpack_codes<Storage::SIX_BITS>(stored.data, stored.levels, k_, bytes.data());
  else
    unpack_codes<Storage::LEVELS>(stored.data, stored.levels, k_, bytes.data());
  return {bytes.data(), Storage::BYTES, nullptr};
}

void Linear::multiply_tile(matrix_unit::Tiles* unit, const Rows& rows, int first, int num, int panel,
                           const StoredCodes& codes, float* tile) const {
  const uint8_t* packed = codes.data;
  if (kind_ == Kind::F32)
    with_rows(num, [&]<int R>() {
      multiply_dense<R>(rows.row<float>(first), rows.stride / 4, reinterpret_cast<const float*>(packed), k_,
                        tile);
    });
  else if (kind_ == Kind::BF16)
    with_rows(num, [&]<int R>() {
      multiply_dense<R>(rows.row<bf16>(first), rows.stride / 2, reinterpret_cast<const bf16*>(packed), k_,
                        tile);
    });
  else if (kind_ == Kind::SUPER)
    multiply_superblocks(rows, first, num, panel, tile);
  else {
    const bool with_minima = minima_.data() != nullptr;
    const long place = static_cast<long>(panel) * rows.groups * PANEL;
    multiply_codes(unit, rows, first, num, kind_,
                   {codes, scales_.data() + place, with_minima ? nullptr : zeros_.data() + place,
                    with_minima ? minima_.data() + place : nullptr},
                   tile);
  }
  add_bias(panel, num, tile);
}

void Linear::add_bias(int panel, int num, float* tile) const {
  if (bias_.data() == nullptr) return;
  const float* bias = bias_.data() + panel * PANEL;
  for (int r = 0; r < num; ++r)
    for (int half = 0; half < PANEL; half += LANES) {
      float* place = tile + r * PANEL + half;
      _mm512_store_ps(place, _mm512_add_ps(_mm512_load_ps(place), _mm512_loadu_ps(bias + half)));
    }
}

void Linear::multiply_superblocks(const Rows& rows, int first, int num, int panel, float* tile) const {
  const uint8_t* packed = weights_.data() + panel_place(panel);
  const int bits = panel_bits_.data()[panel], superblocks = k_ / SUPER_COLUMNS;
  if (bits == 4) {
    return for_each_tile(num, QUANTIZED_TILE_ROWS, [&](int at, int count) {
      with_rows<QUANTIZED_TILE_ROWS>(count, [&]<int R>() {
        multiply_nibble_superblocks<R>(quantized_rows(rows, first + at, k_), packed, superblocks,
                                       tile + at * PANEL);
      });
    });
  }
  const SuperRows input{reinterpret_cast<const int16_t*>(rows.row<uint8_t>(first) + rows.words_place),
                        rows.stride / 2, rows.units.data() + static_cast<long>(first) * superblocks,
                        superblocks, rows.bytes};
  if (bits == 5)
    multiply_super<5>(input, packed, num, tile);
  else
    multiply_super<6>(input, packed, num, tile);
}

void Linear::multiply_codes([[maybe_unused]] matrix_unit::Tiles* unit, const Rows& rows, int first, int num,
                            Kind kind, const QuantizedPanel& weights, float* tile) const {
  const bool with_minima = weights.minima != nullptr;
  const StoredCodes& codes = weights.codes;
  const QuantizedRows input = quantized_rows(rows, first, k_);
#ifdef __AVX512BF16__
  if (unit != nullptr && rows.wide) {
    const matrix_unit::WideRows wide{reinterpret_cast<const bf16*>(input.high + wide_place()),
                                     rows.stride / 2, input.scales, input.offsets, rows.groups};
    return with_minima ? matrix_unit::multiply_nibbles<true>(*unit, wide, weights, group_, num, tile)
                       : matrix_unit::multiply_nibbles<false>(*unit, wide, weights, group_, num, tile);
  }
#endif
  const auto run = [&]<Kind KIND, bool MINIMA>() {
#ifdef __AVX512BF16__
    if (unit != nullptr)
      return matrix_unit::multiply_quantized<KIND, MINIMA>(*unit, input, weights, group_, num, tile);
#endif
    with_rows(num, [&]<int R>() {
      if constexpr (KIND == Kind::INT8) {
        if (codes.storage == Storage::SIX_BITS)
          return multiply_quantized<R, KIND, MINIMA, Storage::SIX_BITS>(input, weights, group_, tile);
        if (codes.storage == Storage::LEVELS)
          return multiply_quantized<R, KIND, MINIMA, Storage::LEVELS>(input, weights, group_, tile);
      }
      multiply_quantized<R, KIND, MINIMA>(input, weights, group_, tile);
    });
  };
  const auto run_kind = [&]<Kind KIND>() {
    with_minima ? run.template operator()<KIND, true>() : run.template operator()<KIND, false>();
  };
  if (kind == Kind::INT4)
    run_kind.template operator()<Kind::INT4>();
  else if (kind == Kind::INT8)
    run_kind.template operator()<Kind::INT8>();
  else
    run_kind.template operator()<Kind::INT8_COARSE>();
}

}  // namespace penstock
