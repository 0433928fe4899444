// Memory aligned to a vector: owned, in huge pages where the kernel has them, or somebody else's to read.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <utility>

namespace penstock {

constexpr size_t HUGE_PAGE_BYTES = size_t{2} << 20;

inline int round_up(int value, int step) {
  return (value + step - 1) / step * step;
}

// Pieces that lie one behind the other in huge pages, where the kernel has them. A small model's matrices are
// shorter than one such page each: in small pages a step waits for page tables, and no prefetch goes beyond
// one. A chunk's memory goes back when none of its pieces is left.
class Arena {
 public:
  static constexpr size_t CHUNK_BYTES = 8 * HUGE_PAGE_BYTES;

  // Of this process. Never destroyed: pieces may outlive whatever is.
  static Arena& shared() {
    static Arena* arena = new Arena;
    return *arena;
  }

  std::shared_ptr<void> take(size_t bytes) {
    std::lock_guard<std::mutex> turn(turn_);
    bytes = (bytes + 63) / 64 * 64;
    std::shared_ptr<uint8_t> chunk = chunk_.lock();
    if (chunk == nullptr || bytes > size_ - used_) {
      const size_t pages = (bytes + HUGE_PAGE_BYTES - 1) / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
      chunk = map(std::max(CHUNK_BYTES, pages));
      chunk_ = chunk;
      size_ = std::max(CHUNK_BYTES, pages);
      used_ = 0;
    }
    uint8_t* piece = chunk.get() + used_;
    used_ += bytes;
    return std::shared_ptr<void>(std::move(chunk), piece);
  }

 private:
  // Zeros, at a huge page's beginning; pages that nobody writes to take no memory.
  static std::shared_ptr<uint8_t> map(size_t bytes) {
    const size_t all = bytes + HUGE_PAGE_BYTES;
    void* memory = mmap(nullptr, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    madvise(memory, all, MADV_HUGEPAGE);
    const std::shared_ptr<void> owner(memory, [all](void* mapped) { munmap(mapped, all); });
    const auto address = reinterpret_cast<uintptr_t>(memory);
    const uintptr_t first = (address + HUGE_PAGE_BYTES - 1) / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
    return std::shared_ptr<uint8_t>(owner, reinterpret_cast<uint8_t*>(first));
  }

  std::mutex turn_;
  std::weak_ptr<uint8_t> chunk_;  // that pieces are taken from
  size_t size_ = 0, used_ = 0;
};

template <class T>
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(size_t count) : count_(count) {
    const size_t bytes = count * sizeof(T);
    const size_t alignment = bytes >= HUGE_PAGE_BYTES ? HUGE_PAGE_BYTES : 64;
    data_ = static_cast<T*>(std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment));
    if (data_ == nullptr) throw std::bad_alloc();
    if (bytes >= HUGE_PAGE_BYTES) madvise(data_, bytes, MADV_HUGEPAGE);
  }
  // `count` elements beside those that were taken before.
  static Buffer in_arena(size_t count) {
    Buffer buffer;
    if (count == 0) return buffer;
    buffer.piece_ = Arena::shared().take(count * sizeof(T));
    buffer.data_ = static_cast<T*>(buffer.piece_.get());
    buffer.count_ = count;
    buffer.owned_ = false;
    return buffer;
  }
  // `count` elements at `data`, which outlive this and may be read only: nothing may be written through it.
  static Buffer over(const void* data, size_t count) {
    Buffer buffer;
    buffer.data_ = static_cast<T*>(const_cast<void*>(data));
    buffer.count_ = count;
    buffer.owned_ = false;
    return buffer;
  }
  Buffer(Buffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        count_(other.count_),
        owned_(other.owned_),
        piece_(std::move(other.piece_)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(count_, other.count_);
    std::swap(owned_, other.owned_);
    std::swap(piece_, other.piece_);
    return *this;
  }
  ~Buffer() {
    if (owned_) std::free(data_);
  }

  // At least `count` elements; what was in there is lost when it grows.
  void reserve(size_t count) {
    if (count > count_) *this = Buffer(count);
  }
  // Bits that are no number in fp32 and bf16.
  void poison() {
    if (owned_ && data_ != nullptr) std::memset(static_cast<void*>(data_), 0xff, bytes());
  }
  T* data() { return data_; }
  const T* data() const { return data_; }
  size_t bytes() const { return count_ * sizeof(T); }

 private:
  T* data_ = nullptr;
  size_t count_ = 0;
  bool owned_ = true;
  std::shared_ptr<void> piece_;  // of the arena, where that has it
};

}  // namespace penstock
