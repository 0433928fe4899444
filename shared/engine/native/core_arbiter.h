// Who of this host computes now: memory that its processes share, a slot for each. engine/core_arbiter.py
// makes it and says when somebody's slot is empty again.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <cstdint>
#include <cstring>

namespace penstock {

constexpr int SLOTS = 128;
constexpr int CPU_WORDS =
    16;  // CPUs beyond 1023 are counted as one of these: what shares too little only waits

// Who goes first where several compute; the order of the values is that order.
enum class WorkClass : uint32_t { DECODE = 0, SPECULATOR = 1, PREFILL = 2 };
constexpr int WORK_CLASSES = 3;

// The field order is that of the ctypes twin in library.py.
struct alignas(64) Slot {
  uint32_t work_class;
  uint32_t cores;    // CPUs that its threads may run on
  uint32_t limit;    // how many of them its cgroup lets it use at a time
  uint32_t process;  // its pid, to show
  uint64_t cgroup;   // that has the limit; 0: none has
  uint64_t cpus[CPU_WORDS];
  std::atomic<uint32_t> computing;
  std::atomic<uint32_t> moves;     // changes while it computes
  std::atomic<uint32_t> requests;  // that it computes for, and those that wait for it
};
static_assert(sizeof(Slot) == 192);

// What prefill has to compute; the order of the fields is that of the ctypes twin.
struct Prompts {
  uint32_t requests;
  uint32_t moves;
};

struct Board {
  alignas(64) std::atomic<uint32_t> changes;  // raised after every change: no other, nothing to look at
  Slot slots[SLOTS];

  void take(int number, const Slot& as) {
    Slot& slot = slots[number];
    slot.computing.store(0);
    slot.moves.store(0);
    slot.requests.store(0);
    std::memcpy(static_cast<void*>(&slot), static_cast<const void*>(&as), offsetof(Slot, computing));
    change();
  }

  void compute(int number, bool on) {
    if (slots[number].computing.load(std::memory_order_relaxed) == static_cast<uint32_t>(on)) return;
    slots[number].computing.store(on);
    change();
  }

  void serve(int number, uint32_t requests) { slots[number].requests.store(requests); }

  // By the slot's own process, whose thread alone does so.
  void move(int number) {
    std::atomic<uint32_t>& moves = slots[number].moves;
    moves.store(moves.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }

  void change() {
    changes.fetch_add(1);
    syscall(SYS_futex, &changes, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  }

  // Until there are other changes than these, or so long.
  void await_change(uint32_t seen, long nanoseconds) {
    const timespec most{nanoseconds / 1000000000, nanoseconds % 1000000000};
    syscall(SYS_futex, &changes, FUTEX_WAIT, seen, &most, nullptr, 0);
  }

  // How many threads a slot's process has while those compute that compute now; at least one.
  int share(int number) const {
    const Slot& own = slots[number];
    const int cores = portion(number, static_cast<int>(own.cores),
                              [&](const Slot& other) { return on_same_cpus(own, other); });
    if (own.cgroup == 0) return cores;
    return std::min(cores, portion(number, static_cast<int>(own.limit),
                                   [&](const Slot& other) { return other.cgroup == own.cgroup; }));
  }

  // Of prompts that would have the cores of this slot while it does not compute.
  Prompts prompts(int number) const {
    const Slot& own = slots[number];
    Prompts all{};
    for (const Slot& other : slots) {
      if (!other.computing.load(std::memory_order_acquire)) continue;
      if (other.work_class != static_cast<uint32_t>(WorkClass::PREFILL)) continue;
      if (!on_same_cpus(own, other) && (own.cgroup == 0 || own.cgroup != other.cgroup)) continue;
      all.requests += std::max(1u, other.requests.load(std::memory_order_relaxed));
      all.moves += other.moves.load(std::memory_order_relaxed);
    }
    return all;
  }

 private:
  static bool on_same_cpus(const Slot& one, const Slot& other) {
    for (int word = 0; word < CPU_WORDS; ++word)
      if (one.cpus[word] & other.cpus[word]) return true;
    return false;
  }

  // Of `cores`: each class takes half of what the ones before it left, all of it where none comes after, and
  // its members have equal parts of that.
  template <class Shares>
  int portion(int number, int cores, Shares&& shares) const {
    int members[WORK_CLASSES] = {};
    const int own = static_cast<int>(slots[number].work_class);
    for (int other = 0; other < SLOTS; ++other) {
      const Slot& slot = slots[other];
      if (other == number)
        ++members[own];
      else if (slot.computing.load(std::memory_order_acquire) && slot.work_class < WORK_CLASSES &&
               shares(slot))
        ++members[slot.work_class];
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
