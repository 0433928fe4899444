// The threads of this process that compute. Work comes as rounds of items, and every item is claimed by
// whoever is there: nobody waits for a thread that has not begun one, so a thread that gets no core costs
// nothing. How many may claim can change from item to item.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <cstdint>
#include <mutex>
#include <system_error>
#include <thread>

#include "core_arbiter.h"
#include "vectors.h"

namespace penstock {

constexpr int SPINS = 2000;  // before a thread sleeps, about 50 us: longer than what lies between two rounds
constexpr int MAX_THREADS = 1024;
constexpr int MAX_STRETCHES = 16;

inline void futex_wait(std::atomic<uint32_t>& word, uint32_t expected) {
  syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, expected, nullptr, nullptr, 0);
}

inline void futex_wake(std::atomic<uint32_t>& word, int count) {
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, count, nullptr, nullptr, 0);
}

class ThreadPool {
 public:
  // Of this process. Never destroyed: its threads end with the process, asleep.
  static ThreadPool& shared() {
    static ThreadPool* pool = new ThreadPool;
    return *pool;
  }

  // From now on this process agrees with others about the cores; null: it does not.
  void join(Board* board, int slot) {
    std::lock_guard<std::mutex> turn(turn_);
    board_ = board;
    slot_ = slot;
    looked_ = false;
  }

 private:
  friend class Team;

  // What a stretch of a round's items is, in one word, so that a claim is good for the round that it was made
  // in and for no other.
  struct Ticket {
    static constexpr int BITS = 26;
    static uint64_t of(uint64_t threads, uint64_t first, uint64_t end) {
      return threads << (2 * BITS) | end << BITS | first;
    }
    static uint32_t threads(uint64_t ticket) { return ticket >> (2 * BITS); }
    static uint32_t end(uint64_t ticket) { return ticket >> BITS & ((1u << BITS) - 1); }
    static uint32_t next(uint64_t ticket) { return ticket & ((1u << BITS) - 1); }
    static bool open(uint64_t ticket, uint32_t rank) {
      return next(ticket) < end(ticket) && rank < threads(ticket);
    }
  };

  struct alignas(64) Stretch {
    std::atomic<uint64_t> ticket{0};
  };

  using Run = void (*)(const void* work, uint32_t item, int rank);

  // Fewer come where the system has no more threads.
  void hire(int threads) {
    try {
      for (; helpers_ < threads - 1; ++helpers_) std::thread(&ThreadPool::help, this, helpers_ + 1).detach();
    } catch (const std::system_error&) {
    }
  }

  // What follows is for whose turn it is.

  void open_round(Run run, const void* work, uint32_t count, int threads, uint32_t stretches) {
    run_ = run;
    work_ = work;
    done_.store(0, std::memory_order_relaxed);
    num_stretches_.store(stretches);
    for (uint64_t each = 0; each < stretches; ++each)
      stretches_[each].ticket.store(
          Ticket::of(threads, each * count / stretches, (each + 1) * count / stretches));
    if (asleep_.load() > 0) ring();
  }

  // Does the items that nobody else has claimed; returns when all are done.
  void finish_round(uint32_t count) {
    uint32_t own = 0;
    while (claim_item(0)) {
      ++own;
      look_at_board();
    }
    if (done_.fetch_add(own) + own < count) wait_for(count);
  }

  void wait_for(uint32_t count) {
    for (int spins = 0; spins < SPINS; ++spins) {
      if (done_.load(std::memory_order_acquire) == count) return;
      _mm_pause();
    }
    waiting_.store(true);
    for (uint32_t done; (done = done_.load()) != count;) futex_wait(done_, done);
    waiting_.store(false, std::memory_order_relaxed);
  }

  // Claims one item of the round that is open, if any is, and runs it: of the thread's own stretch, or where
  // nothing of that is left, of those of others.
  bool claim_item(uint32_t rank) {
    const uint32_t stretches = num_stretches_.load();
    for (uint32_t each = 0; each < stretches; ++each) {
      std::atomic<uint64_t>& place = stretches_[(rank + each) % stretches].ticket;
      uint64_t ticket = place.load();
      while (Ticket::open(ticket, rank))
        if (place.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acq_rel)) {
          run_(work_, Ticket::next(ticket), static_cast<int>(rank));
          return true;
        }
    }
    return false;
  }

  bool has_item(uint32_t rank) const {
    const uint32_t stretches = num_stretches_.load();
    return std::any_of(stretches_, stretches_ + stretches,
                       [&](const Stretch& each) { return Ticket::open(each.ticket.load(), rank); });
  }

  void help(uint32_t rank) {
    for (int spins = 0;;) {
      const uint32_t allowed = allowed_.load();
      if (rank >= allowed) {
        futex_wait(allowed_, allowed);
        spins = 0;
      } else if (claim_item(rank)) {
        done_.fetch_add(1);
        if (waiting_.load()) futex_wake(done_, 1);
        spins = 0;
      } else if (++spins < SPINS) {
        _mm_pause();
      } else {
        sleep(rank);
        spins = 0;
      }
    }
  }

  void sleep(uint32_t rank) {
    asleep_.fetch_add(1);
    const uint32_t rung = bell_.load();
    if (!has_item(rank)) futex_wait(bell_, rung);
    asleep_.fetch_sub(1);
  }

  void ring() {
    bell_.fetch_add(1);
    futex_wake(bell_, INT_MAX);
  }

  // Whoever leaves the cores to this process sees that it uses them.
  void move() {
    if (board_ != nullptr) board_->move(slot_);
  }

  void look_at_board() {
    move();
    const uint32_t changes = board_ == nullptr ? 0 : board_->changes.load(std::memory_order_acquire);
    if (looked_ && changes == seen_changes_) return;
    looked_ = true;
    seen_changes_ = changes;
    const uint32_t allowed = board_ == nullptr ? MAX_THREADS : board_->share(slot_);
    if (allowed == allowed_.load(std::memory_order_relaxed)) return;
    allowed_.store(allowed);
    futex_wake(allowed_, INT_MAX);
  }

  std::mutex turn_;  // one caller at a time; of all that has no lock of its own
  int helpers_ = 0;
  Run run_ = nullptr;
  const void* work_ = nullptr;
  Board* board_ = nullptr;
  int slot_ = 0;
  bool looked_ = false;
  uint32_t seen_changes_ = 0;
  std::atomic<uint32_t> num_stretches_{0};
  Stretch stretches_[MAX_STRETCHES];
  alignas(64) std::atomic<uint32_t> done_{0};
  std::atomic<bool> waiting_{false};
  alignas(64) std::atomic<uint32_t> allowed_{MAX_THREADS};
  std::atomic<uint32_t> asleep_{0};
  std::atomic<uint32_t> bell_{0};
};

// The pool in the hands of one caller, for one forward pass or a batch of draws. Where somebody else has it,
// the caller does all by itself.
class Team {
 public:
  explicit Team(int threads) : turn_(ThreadPool::shared().turn_, std::defer_lock) {
    if (threads > 1 && turn_.try_lock()) {
      threads_ = std::min(threads, MAX_THREADS);
      ThreadPool::shared().hire(threads_);
      ThreadPool::shared().look_at_board();
    }
  }

  // How many threads there may be; their ranks are below it.
  int most() const { return threads_; }
  // How many may compute at the moment.
  int size() const {
    return std::min<int>(threads_, ThreadPool::shared().allowed_.load(std::memory_order_relaxed));
  }

  // Calls work(first, last, rank) until [0, count) is covered, `grain` at a time. What was written before it
  // is seen by all, what they write is seen after it. `work` must not throw.
  template <class Work>
  void share(int count, int grain, const Work& work) {
    share(count, grain, 1, work, [] {});
  }

  // Calls meanwhile() too, on the caller's thread, while others begin.
  template <class Work, class Meanwhile>
  void share(int count, int grain, const Work& work, Meanwhile&& meanwhile) {
    share(count, grain, 1, work, meanwhile);
  }

  // The same where items lie one behind the other in memory: each thread begins with a stretch of its own, so
  // that what it fetches ahead is its own as well.
  template <class Work, class Meanwhile>
  void share_stretches(int count, int grain, const Work& work, Meanwhile&& meanwhile) {
    share(count, grain, std::min(threads_, MAX_STRETCHES), work, meanwhile);
  }

 private:
  template <class Work, class Meanwhile>
  void share(int count, int grain, int stretches, const Work& work, Meanwhile&& meanwhile) {
    const int items = (count + grain - 1) / grain;
    if (threads_ == 1 || items < 2) {
      meanwhile();
      if (count > 0) work(0, count, 0);
      ThreadPool::shared().move();
      return;
    }
    const Split<Work> split{count, grain, &work};
    ThreadPool::shared().open_round(&Split<Work>::run, &split, items, threads_, stretches);
    meanwhile();
    ThreadPool::shared().finish_round(items);
  }

  template <class Work>
  struct Split {
    int count, grain;
    const Work* work;

    static void run(const void* self, uint32_t item, int rank) {
      const auto& split = *static_cast<const Split*>(self);
      const int first = static_cast<int>(item) * split.grain;
      (*split.work)(first, std::min(split.count, first + split.grain), rank);
    }
  };

  std::unique_lock<std::mutex> turn_;
  int threads_ = 1;
};

}  // namespace penstock
