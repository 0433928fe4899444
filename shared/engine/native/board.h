// Who of this host computes now: memory that its processes share, a seat for each. engine/core_board.py makes
// it and says when somebody's seat is empty again.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>

namespace penstock {

constexpr int SEATS = 128;
constexpr int CPU_WORDS =
    16;  // CPUs beyond 1023 are counted as one of these: what shares too little only waits

// Who goes first where several compute; the order of the values is that order.
enum class WorkClass : uint32_t { DECODE = 0, SPECULATOR = 1, PREFILL = 2 };
constexpr int WORK_CLASSES = 3;

// The field order is that of the ctypes twin in library.py.
struct alignas(64) Seat {
  uint32_t work_class;
  uint32_t cores;    // CPUs that its threads may run on
  uint32_t limit;    // how many of them its cgroup lets it use at a time
  uint32_t process;  // its pid, to show
  uint64_t cgroup;   // that has the limit; 0: none has
  uint64_t cpus[CPU_WORDS];
  std::atomic<uint32_t> computing;
};
static_assert(sizeof(Seat) == 192);

struct Board {
  alignas(64) std::atomic<uint32_t> changes;  // raised after every change: no other, nothing to look at
  Seat seats[SEATS];

  void take(int number, const Seat& as) {
    Seat& seat = seats[number];
    seat.computing.store(0);
    std::memcpy(static_cast<void*>(&seat), static_cast<const void*>(&as), offsetof(Seat, computing));
    changes.fetch_add(1);
  }

  void compute(int number, bool on) {
    if (seats[number].computing.load(std::memory_order_relaxed) == static_cast<uint32_t>(on)) return;
    seats[number].computing.store(on);
    changes.fetch_add(1);
  }

  // How many threads a seat's process has while those compute that compute now; at least one.
  int share(int number) const {
    const Seat& own = seats[number];
    const int cores = portion(number, static_cast<int>(own.cores), [&](const Seat& other) {
      for (int word = 0; word < CPU_WORDS; ++word)
        if (own.cpus[word] & other.cpus[word]) return true;
      return false;
    });
    if (own.cgroup == 0) return cores;
    return std::min(cores, portion(number, static_cast<int>(own.limit),
                                   [&](const Seat& other) { return other.cgroup == own.cgroup; }));
  }

 private:
  // Of `cores`: each class takes half of what the ones before it left, all of it where none comes after, and
  // its members have equal parts of that.
  template <class Shares>
  int portion(int number, int cores, Shares&& shares) const {
    int members[WORK_CLASSES] = {};
    const int own = static_cast<int>(seats[number].work_class);
    for (int other = 0; other < SEATS; ++other) {
      const Seat& seat = seats[other];
      if (other == number)
        ++members[own];
      else if (seat.computing.load(std::memory_order_acquire) && seat.work_class < WORK_CLASSES &&
               shares(seat))
        ++members[seat.work_class];
    }
    int left = cores;
    for (int each = 0;; ++each) {
      if (members[each] == 0) continue;
      const bool last = std::all_of(members + each + 1, members + WORK_CLASSES, [](int n) { return n == 0; });
      const int taken = last ? left : (left + 1) / 2;
      if (each == own) return std::max(1, taken / members[each]);
      left -= taken;
    }
  }
};

}  // namespace penstock
