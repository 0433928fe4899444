// The threads of one forward pass: all run the same function and meet at barriers.
#pragma once

#include <immintrin.h>
#include <omp.h>
#include <sched.h>

#include <atomic>

namespace penstock {

constexpr int SPINS_BEFORE_YIELD = 2000;  // about 50 us: longer than a phase, shorter than a time slice

class Team {
 public:
  explicit Team(int size) : size_(size) {}
  int size() const { return size_.load(std::memory_order_relaxed); }

  // Runs `work(rank)` on every thread; the caller is rank 0. An exception in `work` ends the process, so it
  // must not ask for memory.
  template <class Work>
  void run(Work&& work) {
    if (size() == 1) {
      work(0);
      return;
    }
#pragma omp parallel num_threads(size())
    {
      // Fewer may come than were asked for (OMP_THREAD_LIMIT, OMP_DYNAMIC); all of them store the same.
      size_.store(omp_get_num_threads(), std::memory_order_relaxed);
      work(omp_get_thread_num());
    }
  }

  // What was written before it is seen by all after it. Yields when a thread is late: it may have lost its
  // core.
  void barrier() {
    if (size() == 1) {
      next_.store(0, std::memory_order_relaxed);
      return;
    }
    const int round = round_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) == size() - 1) {
      arrived_.store(0, std::memory_order_relaxed);
      next_.store(0, std::memory_order_relaxed);
      round_.store(round + 1, std::memory_order_release);
      return;
    }
    for (int spins = 0; round_.load(std::memory_order_acquire) == round; ++spins) {
      if (spins < SPINS_BEFORE_YIELD)
        _mm_pause();
      else
        sched_yield();
    }
  }

  // The next of a phase's items, for work of uneven size; starts at 0 after every barrier.
  int take() { return next_.fetch_add(1, std::memory_order_relaxed); }

  int begin(int rank, int count) const { return static_cast<int>(static_cast<long>(count) * rank / size()); }
  int end(int rank, int count) const { return begin(rank + 1, count); }

 private:
  std::atomic<int> size_;
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<int> round_{0};
  alignas(64) std::atomic<int> next_{0};
};

}  // namespace penstock
