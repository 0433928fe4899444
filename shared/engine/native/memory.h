// Memory aligned to a vector: owned, in huge pages where the kernel has them, or somebody else's to read.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdlib>
#include <new>
#include <utility>

namespace penstock {

constexpr size_t HUGE_PAGE_BYTES = size_t{2} << 20;

inline int round_up(int value, int step) {
  return (value + step - 1) / step * step;
}

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
  // `count` elements at `data`, which outlive this and may be read only: nothing may be written through it.
  static Buffer over(const void* data, size_t count) {
    Buffer buffer;
    buffer.data_ = static_cast<T*>(const_cast<void*>(data));
    buffer.count_ = count;
    buffer.owned_ = false;
    return buffer;
  }
  Buffer(Buffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), count_(other.count_), owned_(other.owned_) {}
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(count_, other.count_);
    std::swap(owned_, other.owned_);
    return *this;
  }
  ~Buffer() {
    if (owned_) std::free(data_);
  }

  // At least `count` elements; what was in there is lost when it grows.
  void reserve(size_t count) {
    if (count > count_) *this = Buffer(count);
  }
  T* data() { return data_; }
  const T* data() const { return data_; }
  size_t bytes() const { return count_ * sizeof(T); }

 private:
  T* data_ = nullptr;
  size_t count_ = 0;
  bool owned_ = true;
};

}  // namespace penstock
