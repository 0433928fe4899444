// OpenMP on one thread, for a build whose compiler has none.
#pragma once
inline int omp_get_thread_num() {
  return 0;
}
inline int omp_get_num_threads() {
  return 1;
}
