// What every test of the core needs: a check that ends it, and a wait that keeps the CPU busy.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <ctime>

#define CHECK(condition)                                                          \
  do {                                                                            \
    if (!(condition)) {                                                           \
      std::fprintf(stderr, "%s:%d: CHECK(%s)\n", __FILE__, __LINE__, #condition); \
      std::exit(1);                                                               \
    }                                                                             \
  } while (false)

namespace sparse_autotune::test {

inline void spin(double us) {
  timespec start, now;
  clock_gettime(CLOCK_MONOTONIC, &start);
  do {
    clock_gettime(CLOCK_MONOTONIC, &now);
  } while (static_cast<double>(now.tv_sec - start.tv_sec) * 1e6 +
               static_cast<double>(now.tv_nsec - start.tv_nsec) * 1e-3 <
           us);
}

}  // namespace sparse_autotune::test
