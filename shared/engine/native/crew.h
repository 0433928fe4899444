// Threads that help with a handful of items, each of some microseconds. Unlike at a barrier nobody waits for
// a helper that has not begun: one that gets no core costs nothing, because whoever called does its items.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>

namespace penstock {

class Crew {
 public:
  // Of this process. Never destroyed: its threads end with the process, asleep.
  static Crew& shared() {
    static Crew* crew = new Crew;
    return *crew;
  }

  // Calls `item(i)` once for each i below `count`, on the caller's thread and on up to `threads` - 1 others.
  // Where somebody else is using the crew the caller does all by itself. `item` must not throw.
  void run(int64_t count, int threads, const std::function<void(int64_t)>& item) {
    std::unique_lock<std::mutex> turn(turn_, std::try_to_lock);
    if (threads < 2 || count < 2 || !turn.owns_lock()) {
      for (int64_t i = 0; i < count; ++i) item(i);
      return;
    }
    {
      std::lock_guard<std::mutex> lock(state_);
      for (; helpers_ < threads - 1; ++helpers_) std::thread(&Crew::help, this, helpers_).detach();
      item_ = &item;
      count_ = count;
      wanted_ = threads - 1;
      next_.store(0, std::memory_order_relaxed);
      ++round_;
    }
    begun_.notify_all();
    work(item, count);
    std::unique_lock<std::mutex> lock(state_);
    item_ = nullptr;  // who comes now is too late
    ended_.wait(lock, [&] { return inside_ == 0; });
  }

 private:
  void work(const std::function<void(int64_t)>& item, int64_t count) {
    for (int64_t i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < count;) item(i);
  }

  void help(int number) {
    uint64_t seen = 0;
    std::unique_lock<std::mutex> lock(state_);
    for (;;) {
      begun_.wait(lock, [&] { return item_ != nullptr && round_ != seen && number < wanted_; });
      seen = round_;
      ++inside_;
      const std::function<void(int64_t)>& item = *item_;
      const int64_t count = count_;
      lock.unlock();
      work(item, count);
      lock.lock();
      if (--inside_ == 0) ended_.notify_one();
    }
  }

  std::mutex turn_;   // one caller at a time
  std::mutex state_;  // of all below but next_
  std::condition_variable begun_, ended_;
  const std::function<void(int64_t)>* item_ = nullptr;
  int64_t count_ = 0;
  int helpers_ = 0, wanted_ = 0, inside_ = 0;
  uint64_t round_ = 0;
  std::atomic<int64_t> next_{0};
};

}  // namespace penstock
