// What other extensions of Python write to a call by, without an object for each message.
#pragma once

#include <cstddef>
#include <cstdint>

namespace penstock::http2 {

// The name of the capsule: `PyCapsule_Import` finds it by that.
constexpr char API_NAME[] = "shared.http2._codec.api";

struct Api {
  // Writes a whole message as `Connection.write` does, to an object of that class: 1 where there is room for
  // another one, 0 where there is none, -1 where the call is gone. Raises nothing.
  int (*write)(void* connection, uint32_t stream, const char* message, size_t length) noexcept;
  // Whether an object is of the class.
  bool (*is_connection)(void* object) noexcept;
};

}  // namespace penstock::http2
