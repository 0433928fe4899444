#include "linear.h"

#include <stdexcept>

#include "quantized_tile.h"
#include "superblock_nibbles.h"

namespace penstock {
namespace {

bool in_high_nibble(int k) {  // of the two codes that share a byte
  return k % SHARED_BLOCK >= 8;
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

}  // namespace penstock
